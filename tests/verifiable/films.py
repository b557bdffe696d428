"""Synthetic films: a disk that moves in known ways, and what only looks like motion."""

import numpy as np

from groupwise_messages.video import Video

RATE = 8.0


def disk(speed, *, frames=8, side=64, places=None, noise=0.0):
    """A red disk on light gray that moves right by `speed` sides a second, or from place to place,
    in shares of the side; noise: standard deviation of each pixel, 0 to 1."""
    y, x = np.mgrid[:side, :side] + 0.5
    draw, shown = np.random.default_rng(0), []
    for number in range(frames):
        across = 0.3 + speed / RATE * number if places is None else places[number % len(places)]
        distance = np.hypot(x - across * side, y - side / 2)
        cover = np.clip(side / 6 - distance + 0.5, 0, 1)[..., None]
        shown.append(0.9 * (1 - cover) + cover * np.array([0.9, 0.1, 0.1]))
    return video(np.stack(shown) + noise * draw.standard_normal((frames, side, side, 3)))


def noise(*, frames=8, side=64):
    return video(np.random.default_rng(0).random((frames, side, side, 3)))


def flicker(*, frames=8, side=64):
    """A patterned picture that stands still, under a light that is on and off."""
    y, x = np.mgrid[:side, :side]
    pattern = 0.6 + 0.3 * np.sin(x / 3) * np.sin(y / 4)
    light = np.where(np.arange(frames) % 2, 1.0, 0.6)[:, None, None]
    return video(np.repeat((pattern * light)[..., None], 3, axis=-1))


def video(values):
    return Video((np.clip(values, 0, 1) * 255).round().astype(np.uint8), RATE)
