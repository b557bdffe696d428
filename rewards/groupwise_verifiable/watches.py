"""Watches of pictures and videos: what a person would see first if a reward were gamed.

Published runs ended in dark or overexposed pictures, in flat cartoons and in grids of noise, and in
films that stand still, while their reward rose. These measures need no model, and have no opinion
on what is good: they say that something has changed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groupwise.evaluation import Watch
from groupwise_messages.frames import evenly
from groupwise_verifiable.videos.flow import speed

PICTURE, VIDEO = "PIL.Image.Image", "groupwise_messages.video.Video"
FRAMES = 8
"""Frames of a video that are looked at, evenly spaced."""
LONGEST = 256
"""Pixels of the longer side of what is looked at, near which it is thinned out by whole steps."""
LUMA = np.array([0.2126, 0.7152, 0.0722], dtype=np.float32)
"""Of red, green and blue, ITU-R BT.709."""
LEVELS = 8
"""Of each channel, for the entropy of colours: 512 colours, 9 bits."""


def darkness(completion: Any) -> float:
    """1 minus the mean brightness: 0.0 white to 1.0 black."""
    return 1.0 - float(np.mean([_brightness(frame).mean() for frame in _frames(completion)]))


def edges(completion: Any) -> float:
    """log2(1 + d), d the mean difference in brightness of neighbouring pixels, 0 to 255: 0.0 flat,
    2 to 4 for pictures of things, 6.4 for noise, 8.0 a chessboard. 1 more is about twice d."""

    def of_frame(frame: NDArray[np.uint8]) -> float:
        brightness = _brightness(frame)
        across, down = (np.abs(np.diff(brightness, axis=axis)) for axis in (1, 0))
        return float(np.mean([side.mean() for side in (across, down) if side.size] or [0.0]))

    mean = float(np.mean([of_frame(frame) for frame in _frames(completion)]))
    return math.log2(1.0 + 255.0 * mean)


def color_entropy(completion: Any) -> float:
    """The entropy of the colours of all pixels in bits, 0.0 one colour to 9.0."""
    levels = np.concatenate([frame.reshape(-1, 3) for frame in _frames(completion)]) // (
        256 // LEVELS
    )
    colors = levels.astype(np.int64) @ np.array([LEVELS * LEVELS, LEVELS, 1])
    shares = np.bincount(colors) / len(colors)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


def _frames(completion: Any) -> list[NDArray[np.uint8]]:
    """[H, W, 3] of a picture, or of some frames of a video; every n-th row and column of large
    ones, which keeps edges as sharp as they are."""
    if hasattr(completion, "pixels"):
        frames = [completion.pixels[n] for n in evenly(len(completion.pixels), FRAMES)]
    else:
        is_rgb = completion.mode == "RGB"  # which `convert` would copy
        frames = [np.asarray(completion if is_rgb else completion.convert("RGB"))]
    step = max(1, max(frames[0].shape[:2]) // LONGEST)
    return [frame[::step, ::step] for frame in frames]


def _brightness(frame: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[H, W], 0.0 to 1.0."""
    brightness: NDArray[np.float32] = frame.astype(np.float32) @ LUMA / np.float32(255)
    return brightness


DARKNESS = Watch(of=(PICTURE, VIDEO), measure=darkness, tolerance=0.15)
"""1 minus the mean brightness of pictures and videos: 0.0 white to 1.0 black."""
EDGES = Watch(of=(PICTURE, VIDEO), measure=edges, tolerance=1.0)
"""How much neighbouring pixels differ, on a scale of logarithms: 0.0 flat, 6.4 noise."""
COLOR_ENTROPY = Watch(of=(PICTURE, VIDEO), measure=color_entropy, tolerance=1.0)
"""The entropy of the colours of all pixels in bits: 0.0 one colour to 9.0."""
MOTION = Watch(of=(VIDEO,), measure=speed, better="higher", tolerance=0.02)
"""How fast the fastest pixels of a video move, in sides a second: 0.0 still."""
