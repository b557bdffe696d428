"""Reading the dataset columns that rewards need."""

from collections.abc import Mapping, Sequence
from typing import Any


def column(columns: Mapping[str, Sequence[Any]], name: str, *, reward: str) -> Sequence[Any]:
    """Returns the column `name`; a ValueError names the reward and the columns that exist."""
    if columns.get(name) is None:
        names = ", ".join(sorted(columns)) or "none"
        raise ValueError(f"reward {reward!r} needs the column {name!r}; the columns are: {names}")
    return columns[name]


def gold_text(row: Mapping[str, Any], name: str) -> str | None:
    """Returns the gold answer of a row, stripped; None where it is blank."""
    gold = row.get(name)
    return None if is_missing(gold) else str(gold).strip() or None


def members(groups: Sequence[int]) -> list[list[int]]:
    """The rows of each group, in the order of the groups' first rows.

    groups: the number of each row's group, as rewards receive it.
    """
    rows: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        rows.setdefault(group, []).append(row)
    return list(rows.values())


def is_missing(value: Any) -> bool:
    """Returns whether a row has no value: None, or NaN (an empty cell of a CSV file)."""
    return value is None or (isinstance(value, float) and value != value)  # noqa: PLR0124 - NaN
