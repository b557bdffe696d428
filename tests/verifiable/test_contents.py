"""`image_contents`: objects, counts, colours and positions that a picture must have or must not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import ValidationError

from groupwise_verifiable.images.clauses import excluded, fulfilment, included
from groupwise_verifiable.images.contents import ImageContents
from groupwise_verifiable.images.detection import Box, Detection, Relation, relations, strongest

sys.path.insert(0, str(Path(__file__).parent))
from shape_pictures import COLORS, Drawn, picture

RED_DISK = {"class": "disk", "count": 1, "color": "red"}
BLUE_SQUARE = {"class": "square", "count": 1, "color": "blue"}
RED_LEFT_OF_BLUE = [RED_DISK | {"position": ["left of", 1]}, BLUE_SQUARE]


def scene(*objects: tuple[str, str, float, float]) -> Image.Image:
    """Objects as (kind, colour, x, y), ten pixels wide, on 32 x 32."""
    return picture(*(Drawn(kind, COLORS[color], x, y, 10.0) for kind, color, x, y in objects))


def value(
    image: Image.Image, include: Any, exclude: Any = None, **settings: object
) -> float | None:
    reward = ImageContents(ImageContents.Config.model_validate(settings))
    return reward(["p"], [image], include=[include], exclude=[exclude])[0]


def thing(
    label: str, color: str = "red", x: float = 0.0, y: float = 0.0, score: float = 0.9
) -> Detection:
    """A detection, ten pixels wide."""
    return Detection(label, color, (x, y, x + 10, y + 10), score)


def share(
    include: Any,
    detections: list[Detection],
    exclude: Any = None,
    *,
    unexpected: bool = False,
) -> float:
    return fulfilment(
        included(include, "test"),
        excluded(exclude, "test"),
        detections,
        unexpected=unexpected,
        margin=0.1,
    )


def test_values_of_a_right_picture_and_of_each_mistake() -> None:
    right = scene(("disk", "red", 8, 16), ("square", "blue", 24, 16))
    wrong = {
        "shape": scene(("triangle", "red", 8, 16), ("square", "blue", 24, 16)),
        "colour": scene(("disk", "green", 8, 16), ("square", "blue", 24, 16)),
        "place": scene(("disk", "red", 24, 16), ("square", "blue", 8, 16)),
        "missing": scene(("disk", "red", 8, 16)),
        "one too many": scene(
            ("disk", "red", 8, 8), ("disk", "red", 8, 24), ("square", "blue", 24, 16)
        ),
        "something else": scene(
            ("disk", "red", 8, 8), ("cross", "red", 8, 24), ("square", "blue", 24, 16)
        ),
        "nothing": scene(),
    }
    assert value(right, RED_LEFT_OF_BLUE) == value(right, RED_LEFT_OF_BLUE, mode="partial") == 1.0
    for name, image in wrong.items():
        assert value(image, RED_LEFT_OF_BLUE) == 0.0, name
    partial = {
        name: value(image, RED_LEFT_OF_BLUE, mode="partial") for name, image in wrong.items()
    }
    # Five checks: two counts, two colours, one position.
    assert partial == {
        # No disk, hence neither its colour nor its position, and an extra triangle.
        "shape": pytest.approx(2 / 6),
        "colour": pytest.approx(4 / 5),
        "place": pytest.approx(4 / 5),
        "missing": pytest.approx(2 / 5),
        "one too many": pytest.approx(4 / 5),
        "something else": pytest.approx(5 / 6),
        "nothing": 0.0,
    }


def test_counts() -> None:
    three = [{"class": "disk", "count": 3}]
    disks = [thing("disk", x=20.0 * place) for place in range(7)]
    exact = [share(three, disks[:count]) for count in range(8)]
    assert exact == pytest.approx([0, 1 / 3, 2 / 3, 1, 2 / 3, 1 / 3, 0, 0])


def test_colours() -> None:
    two = [{"class": "disk", "count": 2, "color": "red"}]
    assert share(two, [thing("disk"), thing("disk")]) == 1.0
    assert share(two, [thing("disk"), thing("disk", "blue")]) == pytest.approx((1 + 1 / 2) / 2)
    # Of more objects than required, those with the highest scores count.
    three = [thing("disk", score=0.9), thing("disk", score=0.8), thing("disk", "blue", score=0.7)]
    assert share(two, three) == pytest.approx((1 / 2 + 1) / 2)
    unsure = [thing("disk", score=0.5), thing("disk", score=0.8), thing("disk", "blue", score=0.7)]
    assert share(two, unsure) == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_objects_of_one_class_are_matched_to_clauses_by_colour() -> None:
    either = [
        {"class": "disk", "color": "blue", "position": ["left of", 1]},
        {"class": "disk", "color": "red"},
    ]
    blue_left = [thing("disk", "red", x=50, score=0.9), thing("disk", "blue", x=0, score=0.8)]
    assert share(either, blue_left) == 1.0
    red_left = [thing("disk", "red", x=0), thing("disk", "blue", x=50)]
    assert share(either, red_left) == pytest.approx(4 / 5)
    any_and_red = [{"class": "disk"}, {"class": "disk", "color": "red"}]
    assert share(any_and_red, [thing("disk", "red"), thing("disk", "green")]) == 1.0
    # One blue disk goes to the clause that takes any colour, not to the two red ones.
    two_red_and_any = [{"class": "disk", "count": 2, "color": "red"}, {"class": "disk"}]
    assert share(two_red_and_any, [thing("disk", "blue")]) == pytest.approx((0 + 0 + 1) / 3)


def test_positions() -> None:
    for relation, (x, y) in {
        "left of": (0, 30),
        "right of": (60, 30),
        "above": (30, 0),
        "below": (30, 60),
    }.items():
        clauses = [{"class": "disk"}, {"class": "square", "position": [relation, 0]}]
        for other in ("left of", "right of", "above", "below"):
            clauses[1]["position"] = [other, 0]
            detections = [thing("disk", x=30, y=30), thing("square", x=x, y=y)]
            assert share(clauses, detections) == (
                1.0 if other == relation else pytest.approx(2 / 3)
            )


def test_positions_of_several_objects_are_checked_for_all_pairs() -> None:
    clauses = [{"class": "disk", "count": 2}, {"class": "square", "position": ["above", 0]}]
    square, disks = thing("square", y=20), [thing("disk", y=50), thing("disk", y=0)]
    assert share(clauses, [square, *disks]) == pytest.approx((1 + 1 + 1 / 2) / 3)
    assert share(clauses, [square, disks[0]]) == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)


def test_exclude_forbids_count_or_more_objects() -> None:
    only, forbidden = [{"class": "disk"}], [{"class": "square", "count": 2}]
    one, two = [thing("disk"), thing("square")], [thing("disk"), thing("square"), thing("square")]
    assert share(only, one, forbidden) == 1.0
    assert share(only, two, forbidden) == pytest.approx(1 / 2)
    assert share([], one, forbidden) == 1.0
    assert share([], two, forbidden) == 0.0


def test_unexpected_objects_are_of_classes_that_no_clause_names() -> None:
    only = [{"class": "disk"}]
    detections = [thing("disk"), thing("square"), thing("?")]
    assert share(only, detections) == 1.0
    assert share(only, detections, unexpected=True) == pytest.approx(1 / 3)
    tolerated = [{"class": "square", "count": 2}]
    assert share(only, detections[:2], tolerated, unexpected=True) == 1.0


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ((0, 20, 10, 30), {"left of"}),
        ((60, 20, 70, 30), {"right of"}),
        ((30, 0, 40, 5), {"above"}),
        ((30, 60, 40, 70), {"below"}),
        ((0, 60, 10, 70), {"left of", "below"}),
        ((31, 21, 41, 31), set()),  # nearly the same position
        # 2.1 to the left, less the margin of 2, is not over half of 2.1.
        ((27.9, 20, 37.9, 30), set()),
        ((20, 20, 30, 30), {"left of"}),  # 10 less 2 is over half of 10
    ],
)
def test_relations(first: Box, expected: set[Relation]) -> None:
    assert relations(first, (30, 20, 40, 30), 0.1) == expected


def test_the_margin_is_relative_to_both_sizes() -> None:
    wide, narrow = (0.0, 0.0, 100.0, 10.0), (60.0, 0.0, 70.0, 10.0)  # centres 15 apart
    assert relations(wide, narrow, 0.0) == {"left of"}
    assert relations(wide, narrow, 0.06) == {"left of"}  # 15 - 6.6 > 7.5
    assert relations(wide, narrow, 0.07) == set()  # 15 - 7.7 < 7.5


def test_strongest_keeps_the_higher_score_of_two_overlapping_boxes() -> None:
    weak, strong = thing("cat", x=1, score=0.4), thing("cat", x=0, score=0.8)  # 90 of 110 shared
    dog, far = thing("dog", x=0, score=0.5), thing("cat", x=50, score=0.1)
    assert strongest([weak, dog, strong, far], 0.8) == [strong, dog, far]
    assert strongest([weak, dog, strong, far], 0.82) == [strong, dog, weak, far]


def test_rows_may_be_lists_json_or_empty_and_groups_stay_in_order() -> None:
    red, blue = scene(("disk", "red", 16, 16)), scene(("square", "blue", 16, 16))
    logged: dict[str, Any] = {}
    values = ImageContents()(
        ["p"] * 5,
        [red, blue, red, red, scene()],
        include=[[RED_DISK], json.dumps([RED_DISK]), json.dumps([RED_DISK]), None, float("nan")],
        exclude=[None, None, "", json.dumps([{"class": "square"}]), None],
        log_extra=logged.__setitem__,
    )
    assert values == [1.0, 0.0, 1.0, 0.0, None]  # the fourth did not ask for a disk
    assert logged == {"objects": ["red disk", "blue square", "red disk", "red disk", ""]}


def test_exclude_may_be_missing_and_columns_may_have_other_names() -> None:
    image = scene(("disk", "red", 16, 16))
    assert ImageContents()(["p"], [image], include=[[RED_DISK]]) == [1.0]
    reward = ImageContents(ImageContents.Config(include="must", exclude="must_not"))
    assert reward(["p"], [image], must=[[RED_DISK]], must_not=[[{"class": "disk"}]]) == [0.0]
    with pytest.raises(ValueError, match="'image_contents' needs the column 'include'"):
        ImageContents()(["p"], [image])
    with pytest.raises(ValueError, match="'image_contents' needs the column 'must_not'"):
        reward(["p"], [image], must=[[RED_DISK]], mustnt=[[{"class": "disk"}]])


def test_settings_change_the_checks() -> None:
    two = scene(("disk", "red", 8, 16), ("disk", "red", 24, 16))
    assert value(two, [RED_DISK]) == 0.0
    assert value(two, [RED_DISK], mode="geneval") == 1.0
    assert value(two, [RED_DISK], mode="flow_grpo") == 0.0  # 1 - |1 - 2| / 1, and no colour
    other = scene(("disk", "red", 8, 16), ("square", "red", 24, 16))
    assert value(other, [RED_DISK]) == 0.0
    assert value(other, [RED_DISK], unexpected=False) == 1.0
    beside = scene(("disk", "red", 8, 16), ("square", "blue", 24, 16))
    assert value(beside, RED_LEFT_OF_BLUE, margin=0.3) == 1.0  # 16 - 6 > 8
    assert value(beside, RED_LEFT_OF_BLUE, margin=0.5) == 0.0  # 16 - 10 < 8
    assert value(other, [{"class": "circle"}, {"class": "square"}]) == 1.0


@pytest.mark.parametrize(
    ("include", "message"),
    [
        ([{"class": "cat"}], "unknown class for 'shapes' 'cat'; it knows: disk, square"),
        ([{"class": "disk", "color": "mauve"}], "unknown colour 'mauve'; it knows: red"),
        ([{"class": "disk", "count": 0}], "greater than or equal to 1 at 0.count, found 0"),
        ([{"class": "disk", "size": 3}], "not permitted at 0.size, found 3"),
        ([{"class": "disk", "position": ["near", 0]}], "at 0.position.0, found 'near'"),
        ([{"class": "disk", "position": ["above", 0]}], "must refer to another of the 1 clauses"),
        ([{"class": "disk", "position": ["above", 3]}, {"class": "disk"}], "another of the 2"),
        ("[{", "Invalid JSON"),
        (["disk"], "found 'disk'"),
    ],
)
def test_invalid_clauses_are_refused(include: Any, message: str) -> None:
    with pytest.raises(ValueError, match="'image_contents', sample 0, column 'include'") as caught:
        value(scene(), include)
    assert message in str(caught.value)


def test_invalid_clauses_of_exclude_are_refused() -> None:
    with pytest.raises(ValueError, match="column 'exclude': unknown class for 'shapes' 'cat'"):
        value(scene(), [RED_DISK], [{"class": "cat"}])


def test_invalid_settings_are_refused_by_image_contents() -> None:
    with pytest.raises(ValidationError, match="extra"):
        ImageContents.Config.model_validate({"detecter": "shapes"})
    with pytest.raises(ValueError, match="by the detector 'shapes' alone, found 'some/owl'"):
        ImageContents(ImageContents.Config(detector="some/owl", unexpected=True))
    with pytest.raises(ValueError, match=r"completion 0: expected an image .*, found str"):
        ImageContents()(["p"], ["a red disk"], include=[[RED_DISK]])


def test_a_detector_that_finds_nothing_warns_once() -> None:
    reward = ImageContents()
    empty, include = [scene(), scene()], [[RED_DISK]] * 2
    with pytest.warns(UserWarning, match="'shapes' found nothing in any of 2 pictures"):
        assert reward(["p"] * 2, empty, include=include) == [0.0, 0.0]
    assert reward(["p"] * 2, empty, include=include) == [0.0, 0.0]
    # No warning where any object is detected, or where no object is required.
    detected = [scene(), scene(("square", "green", 10, 10))]
    assert ImageContents()(["p"] * 2, detected, include=include) == [0.0, 0.0]
    assert ImageContents()(["p"] * 2, empty, include=[None] * 2) == [None, None]
