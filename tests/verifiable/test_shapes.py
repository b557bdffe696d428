"""The built-in detector, on pictures as small as they get."""

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
# A Gaussian's pixels, and the deviation of the noise.
SPOILT = {"clean": (0.0, 0.0), "noisy": (0.6, 0.05), "blurred": (1.1, 0.03)}


def seen(image: Image.Image) -> list[tuple[str, str]]:
    return sorted((found.label, found.color) for found in find_shapes(as_floats(image)))


def scenes(background: str, chance: random.Random) -> Iterator[list[tuple[str, str, Drawn]]]:
    """Every shape in every colour in every quarter, and in half of them something beside it."""
    for palette, kind in product((COLORS, PURE), SHAPES):
        for color, place in product(palette, range(4)):
            scene = [(kind, color, placed(kind, palette[color], place, chance))]
            if chance.random() < 0.5:
                other, its = chance.choice(SHAPES), chance.choice(list(palette))
                beside = (place + chance.choice((1, 2, 3))) % 4
                scene.append((other, its, placed(other, palette[its], beside, chance)))
            yield scene


def placed(kind: str, color: tuple[int, int, int], quarter: int, chance: random.Random) -> Drawn:
    """9 to 13 pixels wide, half a pixel or more inside its quarter."""
    width = chance.uniform(9, 13)
    room = (15 - width) / 2
    x, y = (at + chance.uniform(-room, room) for at in QUARTERS[quarter])
    return Drawn(kind, color, x, y, width)


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize(("spoilt", "least"), [("clean", 1.0), ("noisy", 0.99), ("blurred", 0.98)])
def test_every_shape_colour_and_place(background: str, spoilt: str, least: float) -> None:
    chance, numbers = random.Random(0), np.random.default_rng(0)
    blur, noise = SPOILT[spoilt]
    right = []
    for scene in scenes(background, chance):
        image = picture(
            *(drawn for *_, drawn in scene),
            background=BACKGROUNDS[background],
            blur=blur,
            noise=noise,
            chance=numbers,
        )
        right.append(seen(image) == sorted((kind, color) for kind, color, _ in scene))
    assert len(right) == 224
    assert np.mean(right) >= least


@pytest.mark.parametrize("size", [24, 64, 100, 512])
def test_sizes_and_boxes(size: int) -> None:
    scale = size / 32
    for kind, color in product(SHAPES, COLORS):
        width = 11 * scale
        drawn = Drawn(kind, COLORS[color], 0.4 * size, 0.6 * size, width)
        image = picture(drawn, size=(size, size + 8))
        (found,) = find_shapes(as_floats(image))
        assert (found.label, found.color) == (kind, color)
        assert found.score > 0.9
        edges = (drawn.x - width / 2, drawn.y - width / 2, drawn.x + width / 2, drawn.y + width / 2)
        # The apex of a triangle covers less than half of its pixels.
        assert found.box == pytest.approx(edges, abs=max(2, 0.06 * size))


@pytest.mark.parametrize("kind", ["triangle", "triangle down", "triangle left", "triangle right"])
def test_triangles_point_anywhere(kind: str) -> None:
    for width in (9, 11.5, 13):
        drawn = Drawn(kind, COLORS["blue"], 15.7, 16.2, width)
        assert seen(picture(drawn)) == [("triangle", "blue")]


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
def test_what_is_melted_or_something_else_is_no_shape(kind: str) -> None:
    chance, numbers = random.Random(1), np.random.default_rng(1)
    labels = []
    for spoilt in (SPOILT["clean"], SPOILT["noisy"]):
        for color in COLORS.values():
            place = chance.uniform(9, 23), chance.uniform(9, 23)
            drawn = Drawn(kind, color, *place, chance.uniform(10, 13))
            image = picture(drawn, blur=spoilt[0], noise=spoilt[1], chance=numbers)
            labels += [found.label for found in find_shapes(as_floats(image))]
    assert len(labels) == 14
    assert labels.count(UNKNOWN) >= 13


def test_colours_that_touch_are_two_objects() -> None:
    for background, (one, other) in product(BACKGROUNDS, product(PURE, repeat=2)):
        if one == other:
            continue
        left = Drawn("square", PURE[one], 10.0, 16.0, 11.0)
        right = Drawn("disk", PURE[other], 21.0, 15.5, 11.0)  # they share an edge
        image = picture(left, right, background=BACKGROUNDS[background])
        assert seen(image) == sorted([("square", one), ("disk", other)]), (background, one, other)


def test_one_colour_that_touches_is_one_object() -> None:
    squares = [Drawn("square", COLORS["red"], x, 16.0, 10.0) for x in (10.0, 20.0)]
    assert seen(picture(*squares)) == [(UNKNOWN, "red")]
    apart = [Drawn("square", COLORS["red"], x, 16.0, 10.0) for x in (9.0, 21.0)]
    assert seen(picture(*apart)) == [("square", "red")] * 2


def test_an_object_is_found_beside_a_much_brighter_one_that_it_touches() -> None:
    faint = Drawn("square", (0, 100, 0), 10.0, 16.0, 10.0)
    bright = Drawn("square", (255, 255, 0), 20.0, 16.0, 10.0)
    image = picture(faint, bright, background=(32, 32, 32))
    assert seen(image) == [("square", "green"), ("square", "yellow")]


def test_proportions() -> None:
    for stretch, label in ((1.3, "disk"), (2.0, UNKNOWN)):
        large = Image.new("RGB", (256, 256), "white")
        ImageDraw.Draw(large).ellipse((128 - 40 * stretch, 88, 128 + 40 * stretch, 168), fill="red")
        assert seen(large.reduce(8)) == [(label, "red")]


def test_nothing_is_found_where_nothing_is() -> None:
    numbers = np.random.default_rng(0)
    for background in BACKGROUNDS.values():
        assert seen(picture(background=background)) == []
        for _ in range(20):
            assert seen(picture(background=background, noise=0.05, chance=numbers)) == []
    specks = [Drawn("square", COLORS["red"], x, 16.0, 2.0) for x in (6.0, 16.0, 26.0)]
    assert seen(picture(*specks)) == []


def test_pictures_without_sense_have_hardly_any_shape_and_break_nothing() -> None:
    numbers = np.random.default_rng(0)
    labels = []
    for deviation, _ in product((0.1, 0.2, 0.4, 2.0), range(20)):
        values = (0.5 + numbers.normal(0, deviation, (32, 32, 3))).clip(0, 1)
        labels += [found.label for found in find_shapes(values.astype(np.float32))]
        blocks = np.kron(numbers.integers(0, 3, (4, 4, 3)) / 2, np.ones((8, 8, 1)))
        find_shapes(blocks.astype(np.float32))
    assert len(labels) > 100
    assert labels.count(UNKNOWN) > 0.98 * len(labels)
    for height, width in ((1, 1), (2, 7), (130, 3)):
        find_shapes(numbers.random((height, width, 3)).astype(np.float32))


def test_a_stripe_is_no_shape_and_takes_no_square_of_its_length() -> None:
    stripe = np.zeros((20_000, 4, 3), np.float32)
    stripe[:, 1:3] = 1.0
    labels = [found.label for found in find_shapes(stripe)]
    assert set(labels) == {UNKNOWN}


def test_colours_have_the_names_that_people_give_them() -> None:
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
