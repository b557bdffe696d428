"""Solution: the program of a row that its data set calls right."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from groupwise.kit.foreign_json import read as read_json

SOLUTIONS = ("canonical_solution", "solutions", "solution", "gold_standard_solution", "code")
"""Columns, in the order in which they are looked for."""
_PYTHON_3 = 3
"""Its number among the languages of code_contests."""


def solution_of(row: Mapping[str, Any]) -> str | None:
    """A row's own solution; HumanEval's goes on where its prompt ends."""
    for name in SOLUTIONS:
        value = row.get(name)
        if isinstance(value, str) and value.startswith("["):
            with suppress(ValueError):
                value = read_json(value)
        if isinstance(value, Mapping):  # code_contests
            pairs = zip(value.get("language", ()), value.get("solution", ()), strict=False)
            value = [code for language, code in pairs if language == _PYTHON_3]
        if isinstance(value, list):
            value = next(iter(value), None)
        if isinstance(value, str) and value.strip():
            opening = row.get("prompt") if name == "canonical_solution" else ""
            return f"{opening if isinstance(opening, str) else ''}{value}"
    return None
