"""Checklist: the questions about one picture, as a row of GenEval 2 or of DPG-Bench has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.kit import foreign_json
from groupwise_judge.material import is_blank

NAMES = {
    "question": ("question", "question_natural_language"),
    "answer": ("answer",),
    "id": ("id", "proposition_id"),
    "parents": ("parents", "dependency"),
}
"""The keys of a question, and DPG-Bench's names of its columns."""
EXPECTED = (
    "a list of questions, each a text, [question, answer], or {question, answer, id, parents}"
)


@dataclass(frozen=True, kw_only=True)
class Item:
    """A question with the answer that is right. id: its number in the row, from 1 unless given;
    parents: the ids of questions that must hold for it to count."""

    question: str
    answer: str = "yes"
    id: int
    parents: tuple[int, ...] = ()


def checklist(cell: Any, where: str) -> list[Item]:
    """The questions of a row's cell, a list or its JSON; none of an empty cell.

    Raises ValueError for anything else, and for parents that are no questions of the row.
    """
    if is_blank(cell):
        return []
    if isinstance(cell, str):
        try:
            cell = foreign_json.read(cell)
        except ValueError:
            raise ValueError(
                f"{where}: expected {EXPECTED}, or its JSON, found {cell!r:.60}"
            ) from None
    if not isinstance(cell, Sequence):
        raise ValueError(f"{where}: expected {EXPECTED}, found {cell!r:.60}")
    items = [_item(value, number, where) for number, value in enumerate(cell, 1)]
    known = [item.id for item in items]
    for item in items:
        unknown = [parent for parent in item.parents if parent not in known]
        if unknown or item.id in item.parents or known.count(item.id) > 1:
            what = f"parent {unknown[0]}" if unknown else f"id {item.id}"
            raise ValueError(f"{where}: question {item.question!r:.40}: {what} is not another one")
    return items


def holding(items: Sequence[Item], holds: Mapping[int, bool]) -> dict[int, bool]:
    """By id whether a question counts: all of its parents hold, and theirs count.

    holds: by id whether its answer is the right one. In a circle of parents none counts.
    """
    by_id, counts = {item.id: item for item in items}, dict[int, bool]()

    def count(item: Item, above: frozenset[int]) -> bool:
        if item.id not in counts:
            below = above | {item.id}
            counts[item.id] = all(
                parent not in below and holds[parent] and count(by_id[parent], below)
                for parent in item.parents
            )
        return counts[item.id]

    return {item.id: count(item, frozenset()) for item in items}


def _item(value: Any, number: int, where: str) -> Item:
    if isinstance(value, str):
        return Item(question=value, id=number)
    if isinstance(value, Sequence) and len(value) == 2 and all(isinstance(x, str) for x in value):
        return Item(question=value[0], answer=value[1], id=number)
    if isinstance(value, Mapping):
        fields = {name: _first(value, keys) for name, keys in NAMES.items()}
        if isinstance(fields["question"], str):
            return Item(
                question=fields["question"],
                answer=fields["answer"] or "yes",
                id=number if fields["id"] is None else int(fields["id"]),
                parents=_parents(fields["parents"], where),
            )
    raise ValueError(f"{where}, question {number}: expected {EXPECTED}, found {value!r:.60}")


def _first(value: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((value[key] for key in keys if value.get(key) is not None), None)


def _parents(value: Any, where: str) -> tuple[int, ...]:
    """Ids of a list, or of a text such as "1,3"; 0 stands for none, as in DPG-Bench."""
    parts = value.split(",") if isinstance(value, str) else value
    parts = [] if parts is None else parts if isinstance(parts, Sequence) else [parts]
    try:
        numbers = [int(part) for part in parts if str(part).strip()]
    except (TypeError, ValueError):
        raise ValueError(f"{where}: parents: expected numbers, found {value!r:.40}") from None
    return tuple(number for number in numbers if number)
