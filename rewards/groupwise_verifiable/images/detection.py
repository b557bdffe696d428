"""Detected objects: class, colour, box, and the relations between boxes."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels, y downwards
Relation = Literal["left of", "right of", "above", "below"]


@dataclass(frozen=True)
class Detection:
    """An object in an image. color: its name, None if not determined; score: confidence, 0 to 1."""

    label: str
    color: str | None
    box: Box
    score: float


def by_class(detections: Iterable[Detection]) -> defaultdict[str, list[Detection]]:
    """Returns the objects of each class, by falling confidence."""
    objects: defaultdict[str, list[Detection]] = defaultdict(list)
    for each in sorted(detections, key=lambda each: -each.score):
        objects[each.label].append(each)
    return objects


def relations(first: Box, second: Box, margin: float) -> set[Relation]:
    """Returns the relations of the first box to the second: none, one or two of the four.

    Along each axis, the distance of the centres is reduced by `margin` times the sum of both sizes.
    A relation holds if this reduced distance exceeds half of the Euclidean distance of the centres,
    so a diagonal of 45 degrees is both left of and above, for example. `relative_position` of
    GenEval, arXiv:2310.11513.
    """
    across, x = _distance(first[0], first[2], second[0], second[2], margin)
    down, y = _distance(first[1], first[3], second[1], second[3], margin)
    enough = 0.5 * (across**2 + down**2) ** 0.5
    places: set[Relation] = set()
    if abs(x) > enough:
        places.add("left of" if x < 0 else "right of")
    if abs(y) > enough:
        places.add("above" if y < 0 else "below")
    return places


def _distance(
    low: float, high: float, low_other: float, high_other: float, margin: float
) -> tuple[float, float]:
    """The distance of two intervals' centres, and the same reduced by the margin."""
    distance = (low + high - low_other - high_other) / 2
    left = max(0.0, abs(distance) - margin * (high - low + high_other - low_other))
    return distance, left if distance > 0 else -left


def strongest(detections: Iterable[Detection], overlap: float) -> list[Detection]:
    """Non-maximum suppression: detections by falling confidence, without those whose intersection
    over union with a more confident one of the same class exceeds `overlap`."""
    kept: list[Detection] = []
    for candidate in sorted(detections, key=lambda each: -each.score):
        rivals = (other for other in kept if other.label == candidate.label)
        if all(_iou(candidate.box, other.box) <= overlap for other in rivals):
            kept.append(candidate)
    return kept


def _iou(first: Box, second: Box) -> float:
    """Intersection over union."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    both = max(0.0, width) * max(0.0, height)
    areas = sum((right - left) * (bottom - top) for left, top, right, bottom in (first, second))
    return both / (areas - both) if both else 0.0
