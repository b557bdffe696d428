"""Solution: the program of a row that its data set calls right."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from groupwise.kit.foreign_json import read as read_json
from groupwise_code.answer import Answer

SOLUTIONS = ("canonical_solution", "solutions", "solution", "gold_standard_solution", "code")
"""Columns, in the order in which they are looked for."""
_NUMBERS = {"python": 3, "cpp": 2}
"""Of languages in code_contests; 1 is Python 2."""


def solution_of(row: Mapping[str, Any], languages: Sequence[str]) -> Answer | None:
    """A row's own solution, in the first of these languages that it may be in.

    HumanEval's goes on where its prompt ends.
    """
    for language in languages:
        if (code := _in(row, language)) is not None:
            return Answer(language, code)
    return None


def _in(row: Mapping[str, Any], wanted: str) -> str | None:
    """A row's solution in a language; only code_contests says of each which one it is in."""
    for name in SOLUTIONS:
        value = row.get(name)
        if isinstance(value, str) and value.startswith("["):
            with suppress(ValueError):
                value = read_json(value)
        if isinstance(value, Mapping):  # code_contests
            pairs = zip(value.get("language", ()), value.get("solution", ()), strict=False)
            value = [code for language, code in pairs if language == _NUMBERS.get(wanted)]
        if isinstance(value, list):
            value = next(iter(value), None)
        if isinstance(value, str) and value.strip():
            opening = row.get("prompt") if name == "canonical_solution" else ""
            return f"{opening if isinstance(opening, str) else ''}{value}"
    return None
