"""`image_contents` on pictures of right scenes, and on wrong ones that look nearly right."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from groupwise_verifiable.images.contents import ImageContents
from groupwise_verifiable.images.shapes import UNKNOWN, find_shapes

sys.path.insert(0, str(Path(__file__).parent))
from judged_scenes import RED_LEFT_OF_BLUE, Judged, right, wanted, wrong
from scene_parts import GREEN, RED, WHITE, disk, draw, noisy, specks, square
from shape_pictures import as_floats

# At 32 pixels, texture as fine and faint as noise; and colours that a JPEG of 75 spreads too far.
TOO_FAINT = {"in a grid, 32", "on a checkerboard, 32"}
TOO_SMALL = {"cross, JPEG 75, 32"}


def values(pictures: list[Judged], mode: str = "strict") -> dict[str, float | None]:
    names, images, include = zip(*pictures, strict=True)
    reward = ImageContents(ImageContents.Config.model_validate({"mode": mode}))
    scores = reward(["p"] * len(names), list(images), include=list(include))
    return dict(zip(names, scores, strict=True))


def test_wrong_pictures_earn_nothing() -> None:
    strict = values(wrong())
    assert len(strict) > 300
    assert {name for name, value in strict.items() if value} == TOO_FAINT
    partial = values(wrong(), "partial")
    assert {name for name, value in partial.items() if value == 1.0} == TOO_FAINT


def test_right_pictures_earn_all() -> None:
    strict = values(right())
    assert len(strict) > 200
    assert {name for name, value in strict.items() if value != 1.0} == TOO_SMALL


def test_what_no_object_explains_is_one_object_without_a_class() -> None:
    image = draw(disk(), square(half=3, color=GREEN), *specks(10, 3))
    first, rest = find_shapes(as_floats(image))
    assert (first.label, first.color) == ("disk", "red")
    assert (rest.label, rest.score) == (UNKNOWN, 0.0)
    left, top, right_edge, bottom = rest.box
    assert left < first.box[0]
    assert top < first.box[1]
    assert right_edge > first.box[2]
    assert bottom > first.box[3]
    row = wanted("disk")
    assert ImageContents()(["p"], [image], include=[row]) == [0.0]
    lenient = ImageContents(ImageContents.Config(unexpected=False))
    assert lenient(["p"], [image], include=[row]) == [1.0]
    benchmark = ImageContents(ImageContents.Config(mode="geneval"))
    assert benchmark(["p"], [image], include=[row]) == [1.0]


def test_grain_is_seen_at_any_resolution_and_noise_is_none() -> None:
    plain = draw(disk(), side=512)
    assert len(find_shapes(as_floats(noisy(plain, 0.05)))) == 1
    grain = np.asarray(plain).copy()
    grain[8:504:16, 8:504:16] = 0  # single pixels, 0.4% of them
    assert [each.label for each in find_shapes(as_floats(grain))] == ["disk", UNKNOWN]


def test_a_colour_between_two_names_has_none() -> None:
    (between,) = find_shapes(as_floats(draw(disk(color=(95, 65, 205)))))
    assert between.color is None
    (clear,) = find_shapes(as_floats(draw(disk(color=RED))))
    assert clear.color == "red"


def test_a_mixture_of_touching_objects_is_explained() -> None:
    pair = draw(disk(22, 30, 10), square(44, 34, 12, (50, 80, 220)), side=32)
    assert ImageContents()(["p"], [pair], include=[RED_LEFT_OF_BLUE]) == [1.0]
    gap = draw(square(20, 32, 10), square(42, 32, 10), disk(31, 32, 1, WHITE))
    assert ImageContents()(["p"], [gap], include=[wanted("square", count=2)]) == [1.0]
