"""Theorem: what a row asks to prove."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class FormatError(ValueError):
    """A row's theorem cannot be read."""


@dataclass(frozen=True)
class Theorem:
    """A statement without its proof."""

    header: str
    """What comes before it: imports, definitions, notations."""
    statement: str
    """In Coq a sentence, in Lean all up to `:=`."""
    name: str


def text_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """The columns `header` and `formal_statement`, as miniF2F has them; the first may be missing.

    Raises FormatError.
    """
    header, statement = row.get("header") or "", row.get("formal_statement")
    for name, value in {"header": header, "formal_statement": statement}.items():
        if not isinstance(value, str):
            raise FormatError(f"the column {name!r}: expected text, found {value!r:.60}")
    return header, str(statement)


def named(pattern: re.Pattern[str], statement: str) -> str:
    """The name in a statement, the pattern's first group. Raises FormatError."""
    if (match := pattern.match(statement)) is None:
        raise FormatError(f"the column 'formal_statement' states no theorem: {statement!r:.60}")
    return match[1]
