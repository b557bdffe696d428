"""The dataset columns that rewards read, with an error that says what is missing."""

from collections.abc import Mapping, Sequence
from typing import Any


def column(columns: Mapping[str, Sequence[Any]], name: str, *, reward: str) -> Sequence[Any]:
    """Returns the column called `name`; a ValueError names the reward and the columns there are."""
    if columns.get(name) is None:
        there = ", ".join(sorted(columns)) or "none"
        raise ValueError(f"reward {reward!r} needs the column {name!r}; the columns are: {there}")
    return columns[name]


def is_missing(value: Any) -> bool:
    """Returns whether a row has nothing in a column: None, or NaN, an empty cell of a CSV file."""
    return value is None or (isinstance(value, float) and value != value)  # noqa: PLR0124 - NaN
