"""GenEval's rule and Flow-GRPO's training reward, against reimplementations of the originals."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from groupwise_verifiable.images.classes import GENEVAL
from groupwise_verifiable.images.clauses import excluded, included
from groupwise_verifiable.images.contents import ImageContents
from groupwise_verifiable.images.detection import Box, Detection
from groupwise_verifiable.images.geneval import flow_grpo, geneval

Clause = dict[str, Any]
Objects = list[tuple[str, str, Box]]  # class, colour, box; in the order of falling scores


def in_relation(first: Box, second: Box, relation: str) -> bool:
    """The centres' offset less a tenth of both sizes is over half the offset's length."""
    a, b = np.array(first).reshape(2, 2), np.array(second).reshape(2, 2)
    offset = a.mean(0) - b.mean(0)
    left = np.sign(offset) * np.clip(abs(offset) - 0.1 * (np.ptp(a, 0) + np.ptp(b, 0)), 0, None)
    axis, sign = {"left of": (0, -1), "right of": (0, 1), "above": (1, -1), "below": (1, 1)}[
        relation
    ]
    return bool(sign * left[axis] > 0.5 * np.linalg.norm(offset))


def expected_geneval(include: list[Clause], exclude: list[Clause], objects: Objects) -> float:
    """GenEval's `evaluate`: n or more of a class; the n best have the colour and the position."""
    right: list[Objects] = []
    for clause in include:
        own = [each for each in objects if each[0] == clause["class"]][: clause["count"]]
        good = len(own) == clause["count"]
        good &= all(each[1] == clause.get("color", each[1]) for each in own)
        if good and "position" in clause:
            relation, other = clause["position"]
            pairs = [(each[2], target[2]) for each in own for target in right[other]]
            good = bool(pairs) and all(in_relation(*pair, relation) for pair in pairs)
        right.append(own if good else [])
    labels = [each[0] for each in objects]
    return float(all(right) and all(labels.count(c["class"]) < c["count"] for c in exclude))


def expected_flow_grpo(include: list[Clause], objects: Objects) -> float:
    """`evaluate_reward` of Flow-GRPO's reward server."""
    scores: list[float] = []
    right: list[Objects] = []
    for clause in include:
        count = clause["count"]
        own = [each for each in objects if each[0] == clause["class"]]
        scores.append(1 - abs(count - len(own)) / count)
        good = len(own) == count
        if not good and ("color" in clause or "position" in clause):
            scores.append(0)
        if good and "color" in clause:
            right_colors = sum(each[1] == clause["color"] for each in own)
            scores.append(right_colors / count)
            good = right_colors == count
        if good and "position" in clause:
            relation, other = clause["position"]
            pairs = [(each[2], target[2]) for each in own for target in right[other]]
            good = bool(pairs) and all(in_relation(*pair, relation) for pair in pairs)
            scores += [1] if good else [0, 1] if pairs else [0]
        right.append(own if good else [])
    return sum(scores) / len(scores)


def drawn(rng: random.Random) -> tuple[list[Clause], list[Clause], Objects]:
    """Random clauses, and objects that often meet them."""
    labels, colors = ["cat", "dog", "cup"], ["red", "blue"]
    include: list[Clause] = []
    for number in range(rng.randint(1, 3)):
        clause: Clause = {"class": rng.choice(labels), "count": rng.choice([1, 1, 2, 3])}
        if rng.random() < 0.4:
            clause["color"] = rng.choice(colors)
        if number and rng.random() < 0.6:
            relation = rng.choice(["left of", "right of", "above", "below"])
            clause["position"] = [relation, rng.randrange(number)]
        include.append(clause)
    exclude = [{"class": rng.choice(labels), "count": rng.randint(1, 4)}]
    objects: Objects = []
    for clause in include:
        for _ in range(clause["count"] + rng.choice([0, 0, 0, 0, 1, -1, 2])):
            x, y = rng.uniform(0, 60), rng.uniform(0, 60)
            box = (x, y, x + rng.uniform(1, 30), y + rng.uniform(1, 30))
            color = clause.get("color", "red") if rng.random() < 0.8 else "blue"
            objects.append((clause["class"], color, box))
    rng.shuffle(objects)
    return include, exclude if rng.random() < 0.3 else [], objects


def test_both_rules_give_the_values_of_the_published_code() -> None:
    rng, values = random.Random(0), []
    for _ in range(3000):
        include, exclude, objects = drawn(rng)
        clauses, forbidden = included(include, "here"), excluded(exclude, "here")
        detections = [Detection(*each, 1 - rank / 100) for rank, each in enumerate(objects)]
        rng.shuffle(detections)  # the rules must sort by score
        rewards = (
            geneval(clauses, forbidden, detections, margin=0.1),
            flow_grpo(clauses, detections, margin=0.1),
        )
        assert rewards[0] == expected_geneval(include, exclude, objects), (
            include,
            exclude,
            objects,
        )
        assert rewards[1] == pytest.approx(expected_flow_grpo(include, objects)), (include, objects)
        values.append(rewards)
    right = [first for first, _ in values]
    assert 200 < sum(right) < 2000
    # Neither value implies the other, and duplicates can cost more than the largest reward.
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


def test_a_wrong_position_scores_half_of_a_clause() -> None:
    clauses = included([{"class": "cup"}, {"class": "dog", "position": ["left of", 0]}], "here")
    right = [thing("dog", x=0), thing("cup", x=50)]
    wrong = [thing("dog", x=50), thing("cup", x=0)]
    assert flow_grpo(clauses, right, margin=0.1) == 1.0
    assert flow_grpo(clauses, wrong, margin=0.1) == pytest.approx((1 + 1 + 0 + 1) / 4)
    two_cups = [*right, thing("cup", x=60)]
    assert flow_grpo(clauses, two_cups, margin=0.1) == pytest.approx((0 + 1 + 0) / 3)


class Stub:
    """A detector of three cups with falling scores."""

    def __init__(self) -> None:
        self.thresholds: list[float] = []
        self.classes: list[str] = []

    def __call__(
        self, image: object, classes: list[str], *, threshold: float, **_: object
    ) -> list[Detection]:
        self.thresholds.append(threshold)
        self.classes = classes
        every = [
            Detection("cup", None, (0.0, 0.0, 9.0, 9.0), score) for score in (0.95, 0.85, 0.35)
        ]
        return [each for each in every if each.score > threshold and each.label in classes]


def reward(**settings: object) -> tuple[ImageContents, Stub]:
    """The reward with a stub as detector, and the stub."""
    contents = ImageContents(
        ImageContents.Config.model_validate({"detector": "some/model", **settings})
    )
    contents._detector = stub = Stub()  # type: ignore[assignment]
    return contents, stub


GRAY = Image.new("RGB", (16, 16), "gray")


def test_the_detector_looks_for_all_classes_of_geneval_in_its_rows() -> None:
    for row, others, looked in (
        ([{"class": "cup"}], "geneval", GENEVAL),
        ([{"class": "disk"}], "geneval", {"disk"}),
        ([{"class": "cup"}], ["dog"], {"cup", "dog"}),
        (None, "geneval", set()),
    ):
        contents, stub = reward(mode="geneval", others=others)
        contents(["p"], [GRAY], include=[row])
        assert set(stub.classes) == looked
    assert len(GENEVAL) == 80


def test_modes_select_the_rule_and_flow_grpo_needs_include() -> None:
    rows = [[{"class": "cup"}], [{"class": "cup", "count": 3}], None]
    exclude = [None, None, [{"class": "cup", "count": 4}]]
    for mode, expected in (
        ("geneval", [1.0, 1.0, 1.0]),
        ("flow_grpo", [-1.0, 1.0, None]),
        ("strict", [0.0, 1.0, 1.0]),
    ):
        contents, _ = reward(mode=mode)
        assert contents(["p"] * 3, [GRAY] * 3, include=rows, exclude=exclude) == expected


def test_rows_of_counting_have_their_own_threshold() -> None:
    contents, stub = reward(mode="geneval", threshold=0.3, counting_threshold=0.9)
    rows = {"include": [[{"class": "cup", "count": 2}]] * 2, "tag": ["counting", "two_object"]}
    assert contents(["p"] * 2, [GRAY] * 2, **rows) == [0.0, 1.0]
    assert stub.thresholds == [0.9, 0.3]
    with pytest.raises(ValueError, match="'image_contents' needs the column 'tag'"):
        contents(["p"], [GRAY], include=[[{"class": "cup"}]])
    plain, stub = reward(mode="geneval")
    assert plain(["p"] * 2, [GRAY] * 2, **rows) == [1.0, 1.0]
    assert stub.thresholds == [0.3, 0.3]


def test_clauses_that_a_rule_cannot_check_are_refused() -> None:
    later = [{"class": "cup", "position": ["above", 1]}, {"class": "dog"}]
    for mode in ("geneval", "flow_grpo"):
        contents, _ = reward(mode=mode)
        with pytest.raises(ValueError, match=r"clause 0: position .* must refer to an earlier"):
            contents(["p"], [GRAY], include=[later])
    contents, _ = reward(max_objects=5)
    with pytest.raises(ValueError, match=r"about 6 of 'cup', but no more than 5 .* `max_objects`"):
        contents(["p"], [GRAY], include=[[{"class": "cup", "count": 6}]])
    with pytest.raises(ValueError, match="geneval ignores other classes"):
        ImageContents(ImageContents.Config(mode="geneval", unexpected=True))
