"""GenEval's rule and Flow-GRPO's training reward, each beside a restatement of its own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from groupwise_verifiable.images.clauses import excluded, included
from groupwise_verifiable.images.contents import ImageContents
from groupwise_verifiable.images.detection import Box, Detection
from groupwise_verifiable.images.geneval import flow_grpo, geneval

Clause = dict[str, Any]
Objects = list[tuple[str, str, Box]]  # class, colour, box; the surest first


def stands(first: Box, second: Box, relation: str) -> bool:
    """What a tenth of both sizes leaves of the centres' offset is over half its length."""
    a, b = np.array(first).reshape(2, 2), np.array(second).reshape(2, 2)
    offset = a.mean(0) - b.mean(0)
    left = np.sign(offset) * np.clip(abs(offset) - 0.1 * (np.ptp(a, 0) + np.ptp(b, 0)), 0, None)
    axis, sign = {"left of": (0, -1), "right of": (0, 1), "above": (1, -1), "below": (1, 1)}[
        relation
    ]
    return bool(sign * left[axis] > 0.5 * np.linalg.norm(offset))


def benchmark(include: list[Clause], exclude: list[Clause], objects: Objects) -> float:
    """GenEval's `evaluate`: at least n of a class; the n surest have the colour and the place."""
    right: list[Objects] = []
    for clause in include:
        own = [each for each in objects if each[0] == clause["class"]][: clause["count"]]
        good = len(own) == clause["count"]
        good &= all(each[1] == clause.get("color", each[1]) for each in own)
        if good and "position" in clause:
            relation, other = clause["position"]
            pairs = [(each[2], target[2]) for each in own for target in right[other]]
            good = bool(pairs) and all(stands(*pair, relation) for pair in pairs)
        right.append(own if good else [])
    labels = [each[0] for each in objects]
    return float(all(right) and all(labels.count(c["class"]) < c["count"] for c in exclude))


def trained(include: list[Clause], objects: Objects) -> float:
    """`evaluate_reward` of Flow-GRPO's reward server."""
    scores: list[float] = []
    right: list[Objects] = []
    for clause in include:
        wanted = clause["count"]
        own = [each for each in objects if each[0] == clause["class"]]
        scores.append(1 - abs(wanted - len(own)) / wanted)
        good = len(own) == wanted
        if not good and ("color" in clause or "position" in clause):
            scores.append(0)
        if good and "color" in clause:
            named = sum(each[1] == clause["color"] for each in own)
            scores.append(named / wanted)
            good = named == wanted
        if good and "position" in clause:
            relation, other = clause["position"]
            pairs = [(each[2], target[2]) for each in own for target in right[other]]
            good = bool(pairs) and all(stands(*pair, relation) for pair in pairs)
            scores += [1] if good else [0, 1] if pairs else [0]
        right.append(own if good else [])
    return sum(scores) / len(scores)


def drawn(chance: random.Random) -> tuple[list[Clause], list[Clause], Objects]:
    """Clauses, and objects that meet them more often than pure chance would."""
    labels, colors = ["cat", "dog", "cup"], ["red", "blue"]
    include: list[Clause] = []
    for number in range(chance.randint(1, 3)):
        clause: Clause = {"class": chance.choice(labels), "count": chance.choice([1, 1, 2, 3])}
        if chance.random() < 0.4:
            clause["color"] = chance.choice(colors)
        if number and chance.random() < 0.6:
            relation = chance.choice(["left of", "right of", "above", "below"])
            clause["position"] = [relation, chance.randrange(number)]
        include.append(clause)
    exclude = [{"class": chance.choice(labels), "count": chance.randint(1, 4)}]
    objects: Objects = []
    for clause in include:
        for _ in range(clause["count"] + chance.choice([0, 0, 0, 0, 1, -1, 2])):
            x, y = chance.uniform(0, 60), chance.uniform(0, 60)
            box = (x, y, x + chance.uniform(1, 30), y + chance.uniform(1, 30))
            color = clause.get("color", "red") if chance.random() < 0.8 else "blue"
            objects.append((clause["class"], color, box))
    chance.shuffle(objects)
    return include, exclude if chance.random() < 0.3 else [], objects


def test_both_rules_are_those_of_the_published_code() -> None:
    chance, values = random.Random(0), []
    for _ in range(3000):
        include, exclude, objects = drawn(chance)
        clauses, forbidden = included(include, "here"), excluded(exclude, "here")
        surest = [Detection(*each, 1 - at / 100) for at, each in enumerate(objects)]
        chance.shuffle(surest)  # the order is that of the scores
        said = (
            geneval(clauses, forbidden, surest, margin=0.1),
            flow_grpo(clauses, surest, margin=0.1),
        )
        assert said[0] == benchmark(include, exclude, objects), (include, exclude, objects)
        assert said[1] == pytest.approx(trained(include, objects)), (include, objects)
        values.append(said)
    right = [first for first, _ in values]
    assert 200 < sum(right) < 2000
    # Neither implies the other, and duplicates cost more than all there is to earn.
    assert {(1.0, True), (1.0, False), (0.0, True)} <= {(a, b == 1.0) for a, b in values}
    assert min(second for _, second in values) < 0


def thing(label: str, color: str = "red", x: float = 0.0) -> Detection:
    return Detection(label, color, (x, 0.0, x + 10, 10.0), 0.9)


def test_duplicates_cost_in_training_and_not_in_the_benchmark() -> None:
    one = included([{"class": "cup"}], "here")
    values = [flow_grpo(one, [thing("cup")] * count, margin=0.1) for count in range(5)]
    assert values == [0, 1, 0, -1, -2]
    assert [geneval(one, [], [thing("cup")] * count, margin=0.1) for count in range(4)] == [
        *(0, 1, 1, 1)
    ]


def test_a_position_that_is_wrong_is_half_a_position() -> None:
    clauses = included([{"class": "cup"}, {"class": "dog", "position": ["left of", 0]}], "here")
    right = [thing("dog", x=0), thing("cup", x=50)]
    wrong = [thing("dog", x=50), thing("cup", x=0)]
    assert flow_grpo(clauses, right, margin=0.1) == 1.0
    assert flow_grpo(clauses, wrong, margin=0.1) == pytest.approx((1 + 1 + 0 + 1) / 4)
    two_cups = [*right, thing("cup", x=60)]
    assert flow_grpo(clauses, two_cups, margin=0.1) == pytest.approx((0 + 1 + 0) / 3)


class Stub:
    """A detector of three cups, each less sure than the one before."""

    def __init__(self) -> None:
        self.thresholds: list[float] = []

    def __call__(
        self, image: object, classes: list[str], *, threshold: float, **_: object
    ) -> list[Detection]:
        self.thresholds.append(threshold)
        every = [
            Detection("cup", None, (0.0, 0.0, 9.0, 9.0), score) for score in (0.95, 0.85, 0.35)
        ]
        return [each for each in every if each.score > threshold and each.label in classes]


def reward(**settings: object) -> tuple[ImageContents, Stub]:
    """Of a detector that is never loaded."""
    made = ImageContents(
        ImageContents.Config.model_validate({"detector": "some/model", **settings})
    )
    made._detector = stub = Stub()  # type: ignore[assignment]
    return made, stub


GRAY = Image.new("RGB", (16, 16), "gray")


def test_the_modes_reach_the_rules_and_rows_without_include_have_no_training_reward() -> None:
    rows = [[{"class": "cup"}], [{"class": "cup", "count": 3}], None]
    exclude = [None, None, [{"class": "cup", "count": 4}]]
    for mode, expected in (
        ("geneval", [1.0, 1.0, 1.0]),
        ("flow_grpo", [-1.0, 1.0, None]),
        ("strict", [0.0, 1.0, 1.0]),
    ):
        made, _ = reward(mode=mode)
        assert made(["p"] * 3, [GRAY] * 3, include=rows, exclude=exclude) == expected


def test_counting_has_a_threshold_of_its_own() -> None:
    made, stub = reward(mode="geneval", threshold=0.3, counting_threshold=0.9)
    rows = {"include": [[{"class": "cup", "count": 2}]] * 2, "tag": ["counting", "two_object"]}
    assert made(["p"] * 2, [GRAY] * 2, **rows) == [0.0, 1.0]
    assert stub.thresholds == [0.9, 0.3]
    with pytest.raises(ValueError, match="'image_contents' needs the column 'tag'"):
        made(["p"], [GRAY], include=[[{"class": "cup"}]])
    plain, stub = reward(mode="geneval")
    assert plain(["p"] * 2, [GRAY] * 2, **rows) == [1.0, 1.0]
    assert stub.thresholds == [0.3, 0.3]


def test_what_the_rules_cannot_judge_is_refused() -> None:
    later = [{"class": "cup", "position": ["above", 1]}, {"class": "dog"}]
    for mode in ("geneval", "flow_grpo"):
        made, _ = reward(mode=mode)
        with pytest.raises(ValueError, match=r"clause 0: position .* must refer to an earlier"):
            made(["p"], [GRAY], include=[later])
    made, _ = reward(max_objects=5)
    with pytest.raises(ValueError, match=r"about 6 of 'cup', but no more than 5 .* `max_objects`"):
        made(["p"], [GRAY], include=[[{"class": "cup", "count": 6}]])
    with pytest.raises(ValueError, match="geneval ignores other classes"):
        ImageContents(ImageContents.Config(mode="geneval", unexpected=True))
