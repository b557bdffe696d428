"""The reward `unchanged`, and that ignoring a source or an instruction does not pay."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from groupwise_verifiable.images.contents import ImageContents
from groupwise_verifiable.images.shapes import find_shapes
from groupwise_verifiable.images.unchanged import Unchanged

sys.path.insert(0, str(Path(__file__).parent))
from shape_pictures import COLORS

SIDE = 32


def drawn(disk, square="yellow", *, x=8, radius=5):
    """A disk left of a square."""
    image = Image.new("RGB", (SIDE * 4, SIDE * 4), "white")
    pen = ImageDraw.Draw(image)
    pen.ellipse([4 * v for v in (x - radius, 16 - radius, x + radius, 16 + radius)], COLORS[disk])
    pen.rectangle([4 * v for v in (20, 11, 30, 21)], COLORS[square])
    return image.resize((SIDE, SIDE), Image.Resampling.BOX)


def alone():
    """A blue disk elsewhere, and nothing of the source."""
    image = drawn("blue", x=16)
    ImageDraw.Draw(image).rectangle((22, 0, 31, 31), "white")
    return image


def mask():
    image = Image.new("L", (SIDE, SIDE), 0)
    ImageDraw.Draw(image).rectangle((1, 9, 15, 23), 255)
    return image


INCLUDE = [{"class": "disk", "count": 1, "color": "blue"}]


def values(results, sources=None, **settings):
    count = len(results)
    columns = {
        "image": [drawn("red")] * count if sources is None else sources,
        "mask": [mask()] * count,
        "include": [INCLUDE] * count,
    }
    return Unchanged(Unchanged.Config(**settings))(
        ["make the disk blue"] * count, results, **columns
    )


@pytest.mark.parametrize("where", [{"mask": "mask"}, {"include": "include"}])
def test_only_the_rest_counts(where):
    edited, careless = values([drawn("blue"), drawn("blue", "green")], **where)
    assert edited == pytest.approx(1.0)
    assert careless < 0.87


def test_it_is_one_minus_the_rmse_of_the_pixels_outside():
    source = np.asarray(drawn("red"), np.float64) / 255
    result = np.asarray(drawn("blue", "green"), np.float64) / 255
    outside = np.asarray(mask()) == 0
    rmse = np.sqrt(((source - result)[outside] ** 2).mean())
    assert values([drawn("blue", "green")], mask="mask") == [pytest.approx(1 - rmse)]
    whole = np.sqrt(((source - result) ** 2).mean())
    assert values([drawn("blue", "green")]) == [pytest.approx(1 - whole)]


@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_source_and_mask_of_another_size_are_brought_to_the_results(fit):
    wide = Image.new("RGB", (128, 64), "white")
    wide.paste(drawn("red").resize((64, 64), Image.Resampling.NEAREST), (32, 0))
    expected = wide.crop((32, 0, 96, 64)).resize((SIDE, SIDE))
    if fit == "pad":
        expected = Image.new("RGB", (SIDE, SIDE), "white")
        expected.paste(wide.resize((32, 16), Image.Resampling.LANCZOS), (0, 8))
    (value,) = values([expected], [wide], fit=fit)
    assert value > 0.97
    other = {"crop": "pad", "pad": "crop"}[fit]
    assert values([expected], [wide], fit=other)[0] < 0.8


def test_a_huge_object_and_many_of_them_hide_nothing():
    huge = Image.new("RGB", (SIDE, SIDE), "white")
    ImageDraw.Draw(huge).ellipse((1, 1, 30, 30), COLORS["blue"])
    assert "disk" in {found.label for found in find_shapes(np.asarray(huge) / 255)}
    copies = drawn("blue")
    for y in (3, 28):
        ImageDraw.Draw(copies).ellipse((17, y - 3, 23, y + 3), COLORS["blue"])
    for result in (huge, copies):
        assert values([result], include="include")[0] < 0.9


def test_all_may_change_or_there_is_no_source():
    everything = Image.new("L", (8, 8), 255)
    reward = Unchanged(Unchanged.Config(mask="free"))
    one = {"image": [drawn("red")], "free": [everything]}
    assert reward(["x"], [drawn("blue")], **one) == [None]
    with pytest.raises(ValueError, match="sample 0: there is no source"):
        Unchanged()(["x"], [drawn("red")])


@pytest.mark.parametrize("price", [1.0, 4.0, 10.0])
def test_a_new_picture_and_the_source_itself_do_not_pay(price):
    """With the other curve as the reward and this one held at .95 by a price (`constraint`)."""
    results = [drawn("blue"), alone(), drawn("red")]
    contents = ImageContents(ImageContents.Config(unexpected=False))
    followed = contents(["?"] * 3, results, include=[INCLUDE] * 3)
    kept = values(results, mask="mask")
    assert followed == [1.0, 1.0, 0.0]  # by itself it pays a new picture
    assert kept[0] == kept[2] == pytest.approx(1.0)  # by itself it pays the source
    pairs = zip(followed, kept, strict=True)
    edited, new, source = (follows + price * (keeps - 0.95) for follows, keeps in pairs)
    assert edited > new + 0.1
    assert edited > source + 0.9
