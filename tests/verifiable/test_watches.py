"""What is watched of pictures and videos: numbers with a known value, and their limits."""

import math
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from groupwise_messages.video import Video
from groupwise_verifiable import watches

sys.path.insert(0, str(Path(__file__).parent))
import films

CHESS = np.indices((8, 8)).sum(axis=0) % 2 * 255


def picture(levels):
    return Image.fromarray(np.repeat(np.asarray(levels)[..., None], 3, axis=-1).astype(np.uint8))


def flat(level, size=(6, 4)):
    return Image.new("RGB", size, (level,) * 3)


def of(completion):
    return [
        round(each.measure(completion), 4)
        for each in (watches.DARKNESS, watches.EDGES, watches.COLOR_ENTROPY)
    ]


def test_known_pictures():
    assert of(flat(255)) == [0, 0, 0]
    assert of(flat(0)) == [1, 0, 0]
    assert of(picture(CHESS)) == [0.5, 8, 1]
    assert of(flat(51).resize((1, 1))) == [0.8, 0, 0]  # a single pixel has no neighbours
    draw = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    darkness, edges, entropy = of(Image.fromarray(draw))
    assert darkness == pytest.approx(0.5, abs=0.01)
    # The mean difference of two such brightnesses, near that of normal ones of the same variance.
    spread = 255 / math.sqrt(12) * np.linalg.norm(watches.LUMA) * 2 / math.sqrt(math.pi)
    assert edges == pytest.approx(math.log2(1 + spread), abs=0.05)
    assert entropy == pytest.approx(9, abs=0.05)


def test_other_modes_and_large_pictures():
    assert of(flat(255).convert("L")) == [0, 0, 0]
    large = flat(0, (3000, 2000))
    start = time.process_time()
    assert of(large) == [1, 0, 0]
    assert time.process_time() - start < 0.5


def test_a_video_is_the_mean_of_its_frames():
    black, white = np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 255, np.uint8)
    chess = np.asarray(picture(CHESS))
    video = Video(np.stack([black, white, chess, chess]))
    darkness, edges, entropy = of(video)
    assert (darkness, entropy) == (0.5, 1)
    assert edges == pytest.approx(math.log2(1 + 255 / 2), abs=1e-3)


def test_motion_is_watched_of_videos():
    assert watches.PICTURE not in watches.MOTION.of
    assert watches.MOTION.measure(films.disk(0.24)) == pytest.approx(0.24, rel=0.1)
    assert watches.MOTION.measure(films.disk(0.0)) == 0.0
    assert watches.MOTION.measure(films.disk(0.2, frames=1)) is None
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in (Image.Image, Video)}
    assert {*watches.DARKNESS.of} == kinds
