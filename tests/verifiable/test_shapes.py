"""`find_shapes`, the built-in detector: labels, colours and boxes on small pictures."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from groupwise_verifiable.images.colors import PALETTE, color_name
from groupwise_verifiable.images.shapes import SHAPES, UNKNOWN, find_shapes

sys.path.insert(0, str(Path(__file__).parent))
from shape_pictures import BACKGROUNDS, COLORS, PURE, Drawn, as_floats, picture

QUARTERS = [(8, 8), (24, 8), (8, 24), (24, 24)]
# The radius of a Gaussian blur in pixels, and the standard deviation of noise.
DEGRADATIONS = {"clean": (0.0, 0.0), "noisy": (0.6, 0.05), "blurred": (1.1, 0.03)}


def detected(image: Image.Image) -> list[tuple[str, str]]:
    """The labels and colours of all detections, sorted."""
    return sorted((each.label, each.color or "") for each in find_shapes(as_floats(image)))


def scenes(background: str, rng: random.Random) -> Iterator[list[tuple[str, str, Drawn]]]:
    """Every shape in every colour and quarter; in half of the scenes with another shape."""
    for palette, kind in product((COLORS, PURE), SHAPES):
        for color, place in product(palette, range(4)):
            scene = [(kind, color, placed(kind, palette[color], place, rng))]
            if rng.random() < 0.5:
                other, its = rng.choice(SHAPES), rng.choice(list(palette))
                beside = (place + rng.choice((1, 2, 3))) % 4
                scene.append((other, its, placed(other, palette[its], beside, rng)))
            yield scene


def placed(kind: str, color: tuple[int, int, int], quarter: int, rng: random.Random) -> Drawn:
    """9 to 13 pixels wide, half a pixel or more inside its quarter."""
    width = rng.uniform(9, 13)
    room = (15 - width) / 2
    x, y = (at + rng.uniform(-room, room) for at in QUARTERS[quarter])
    return Drawn(kind, color, x, y, width)


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize(
    ("degraded", "minimum"), [("clean", 1.0), ("noisy", 0.99), ("blurred", 0.98)]
)
@pytest.mark.slow(after=1)
def test_every_shape_is_detected_in_every_colour_and_quarter(
    background: str, degraded: str, minimum: float
) -> None:
    rng, noise_rng = random.Random(0), np.random.default_rng(0)
    blur, noise = DEGRADATIONS[degraded]
    right = []
    for scene in scenes(background, rng):
        image = picture(
            *(drawn for *_, drawn in scene),
            background=BACKGROUNDS[background],
            blur=blur,
            noise=noise,
            rng=noise_rng,
        )
        right.append(detected(image) == sorted((kind, color) for kind, color, _ in scene))
    assert len(right) == 224
    assert np.mean(right) >= minimum


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("size", [24, 64, 100, 512])
def test_boxes_are_exact_at_all_sizes(size: int) -> None:
    scale = size / 32
    for kind, color in product(SHAPES, COLORS):
        width = 11 * scale
        drawn = Drawn(kind, COLORS[color], 0.4 * size, 0.6 * size, width)
        image = picture(drawn, size=(size, size + 8))
        (detection,) = find_shapes(as_floats(image))
        assert (detection.label, detection.color) == (kind, color)
        assert detection.score > 0.9
        edges = (drawn.x - width / 2, drawn.y - width / 2, drawn.x + width / 2, drawn.y + width / 2)
        # The apex of a triangle covers less than half of its pixels.
        assert detection.box == pytest.approx(edges, abs=max(2, 0.06 * size))


@pytest.mark.parametrize("kind", ["triangle", "triangle down", "triangle left", "triangle right"])
def test_triangles_in_all_directions_are_detected(kind: str) -> None:
    for width in (9, 11.5, 13):
        drawn = Drawn(kind, COLORS["blue"], 15.7, 16.2, width)
        assert detected(picture(drawn)) == [("triangle", "blue")]


@pytest.mark.parametrize(
    "kind",
    [
        "half disk, half square",
        "hut on a bowl",
        "half disk",
        "rounded square",
        "bitten disk",
        "corner",
        "tee",
        "ring",
        "diamond",
        "house",
        "bar",
    ],
)
def test_mixed_and_other_forms_are_unknown(kind: str) -> None:
    rng, noise_rng = random.Random(1), np.random.default_rng(1)
    labels = []
    for degraded in (DEGRADATIONS["clean"], DEGRADATIONS["noisy"]):
        for color in COLORS.values():
            place = rng.uniform(9, 23), rng.uniform(9, 23)
            drawn = Drawn(kind, color, *place, rng.uniform(10, 13))
            image = picture(drawn, blur=degraded[0], noise=degraded[1], rng=noise_rng)
            labels += [each.label for each in find_shapes(as_floats(image))]
    assert len(labels) == 14
    assert labels.count(UNKNOWN) >= 13


def test_colours_that_touch_are_two_objects() -> None:
    for background, (one, other) in product(BACKGROUNDS, product(PURE, repeat=2)):
        if one == other:
            continue
        left = Drawn("square", PURE[one], 10.0, 16.0, 11.0)
        right = Drawn("disk", PURE[other], 21.0, 15.5, 11.0)  # they share an edge
        image = picture(left, right, background=BACKGROUNDS[background])
        assert detected(image) == sorted([("square", one), ("disk", other)]), (
            background,
            one,
            other,
        )


def test_touching_objects_of_one_colour_are_one_unknown_object() -> None:
    squares = [Drawn("square", COLORS["red"], x, 16.0, 10.0) for x in (10.0, 20.0)]
    assert detected(picture(*squares)) == [(UNKNOWN, "red")]
    separate = [Drawn("square", COLORS["red"], x, 16.0, 10.0) for x in (9.0, 21.0)]
    assert detected(picture(*separate)) == [("square", "red")] * 2


def test_a_dark_object_touching_a_bright_one_is_detected() -> None:
    faint = Drawn("square", (0, 100, 0), 10.0, 16.0, 10.0)
    bright = Drawn("square", (255, 255, 0), 20.0, 16.0, 10.0)
    image = picture(faint, bright, background=(32, 32, 32))
    assert detected(image) == [("square", "green"), ("square", "yellow")]


def test_a_stretched_disk_is_unknown() -> None:
    for stretch, label in ((1.1, "disk"), (1.3, UNKNOWN), (2.0, UNKNOWN)):
        large = Image.new("RGB", (256, 256), "white")
        ImageDraw.Draw(large).ellipse((128 - 40 * stretch, 88, 128 + 40 * stretch, 168), fill="red")
        assert detected(large.reduce(8)) == [(label, "red")]


def test_empty_pictures_have_no_objects_and_specks_are_unknown() -> None:
    noise_rng = np.random.default_rng(0)
    for background in BACKGROUNDS.values():
        assert detected(picture(background=background)) == []
        for _ in range(20):
            assert detected(picture(background=background, noise=0.05, rng=noise_rng)) == []
    specks = [Drawn("square", COLORS["red"], x, 16.0, 2.0) for x in (6.0, 16.0, 26.0)]
    assert detected(picture(*specks)) == [(UNKNOWN, "pink")]


@pytest.mark.slow
def test_noise_has_hardly_any_shapes_and_raises_no_error() -> None:
    noise_rng = np.random.default_rng(0)
    labels = []
    for deviation, _ in product((0.1, 0.2, 0.4, 2.0), range(20)):
        values = (0.5 + noise_rng.normal(0, deviation, (32, 32, 3))).clip(0, 1)
        labels += [each.label for each in find_shapes(values.astype(np.float32))]
        blocks = np.kron(noise_rng.integers(0, 3, (4, 4, 3)) / 2, np.ones((8, 8, 1)))
        find_shapes(blocks.astype(np.float32))
    assert len(labels) > 100
    assert labels.count(UNKNOWN) > 0.98 * len(labels)
    for height, width in ((1, 1), (2, 7), (130, 3)):
        find_shapes(noise_rng.random((height, width, 3)).astype(np.float32))


def test_a_long_stripe_is_unknown_and_needs_linear_memory() -> None:
    stripe = np.zeros((20_000, 4, 3), np.float32)
    stripe[:, 1:3] = 1.0
    labels = [each.label for each in find_shapes(stripe)]
    assert set(labels) == {UNKNOWN}


def test_common_colours_have_their_names() -> None:
    for name, colors in {**{n: (c,) for n, c in PURE.items()}, **PALETTE}.items():
        for color in colors:
            assert color_name(np.array(color) / 255) == name
    for name, color in COLORS.items():
        assert color_name(np.array(color) / 255) == name
    dull = {
        "red": (190, 60, 60),
        "blue": (60, 90, 170),
        "green": (80, 140, 80),
        "gray": (110, 112, 108),
    }
    for name, color in dull.items():
        assert color_name(np.array(color) / 255) == name
