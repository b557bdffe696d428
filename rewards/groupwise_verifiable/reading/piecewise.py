r"""Functions by cases: the values of `\begin{cases}`, each with its condition."""

import re
from collections.abc import Callable

_CASES = re.compile(r"\\begin\s*\{cases\}(.{1,600}?)\\end\s*\{cases\}", re.DOTALL)
_ROW = re.compile(r"\\\\(?:\s*\[[^\]]{0,10}\])?")
_IF = re.compile(
    r"\\(?:text|mathrm|mbox)\s*\{\s*,?\s*(?:if|for|when|where)?\s*\}|\b(?:if|for|when)\b"
)
_END = " ,.;$\\\n"


def cases(text: str) -> list[tuple[str, str]] | None:
    """Returns the values and their conditions; None where a text is no function by cases."""
    match = _CASES.search(text)
    if match is None:
        return None
    rows = [row for row in _ROW.split(match[1]) if row.strip(_END)]
    pairs = [_pair(row) for row in rows]
    return None if None in pairs or len(pairs) < 2 else [pair for pair in pairs if pair]


def same_cases(
    gold: list[tuple[str, str]],
    answer: list[tuple[str, str]],
    same: Callable[[str, str], bool],
) -> bool:
    """Returns whether each value of gold is one of the answer, under the same condition.

    same: whether an answer is gold.
    """
    left = list(answer)
    for value, condition in gold:
        place = next(
            (
                n
                for n, (other, under) in enumerate(left)
                if same(condition, under) and same(value, other)
            ),
            None,
        )
        if place is None:
            return False
        del left[place]
    return not left


def _pair(row: str) -> tuple[str, str] | None:
    parts = row.split("&") if "&" in row else _IF.split(row)
    if len(parts) != 2:
        return None
    value, condition = parts[0].strip(_END), _IF.sub(" ", parts[1]).strip(_END)
    return (value, condition) if value and condition else None
