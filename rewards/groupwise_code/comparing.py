"""Comparing: whether what a program gave is what its problem expects.

It happens in the run's process, on plain data: no method of the program's is called.
"""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

TOLERANCE = 1e-6
"""Absolute and relative, where what is expected has a point."""


def same_output(printed: str, expected: str) -> bool:
    """Whether two outputs have the same lines of the same words, but for white space around them.

    A word of `expected` that has a decimal point is compared as a number, within `TOLERANCE`.
    """
    ours, theirs = _lines(printed), _lines(expected)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def same_value(found: Any, expected: Any) -> bool:
    """Whether two plain values are equal: a tuple equals a list, and True is not 1.

    Numbers are compared within `TOLERANCE` where `expected` is a float.
    """
    if isinstance(expected, bool) or isinstance(found, bool) or expected is None or found is None:
        return type(found) is type(expected) and found == expected
    if isinstance(expected, float) and isinstance(found, int | float):
        is_huge = isinstance(found, int) and abs(found) > 1e300
        return not is_huge and _close(float(found), expected)
    if isinstance(expected, int) and isinstance(found, int | float):
        return found == expected
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        return len(found) == len(expected) and all(map(same_value, found, expected))
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return len(found) == len(expected) and all(
            key in found and same_value(found[key], value) for key, value in expected.items()
        )
    return type(found) is type(expected) and found == expected


def _lines(text: str) -> Sequence[Sequence[str]]:
    lines = [line.split() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_line(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    return len(ours) == len(theirs) and all(map(_same_word, ours, theirs))


def _same_word(found: str, expected: str) -> bool:
    if found == expected:
        return True
    if "." not in expected:
        return False
    try:
        ours, theirs = Decimal(found), Decimal(expected)
    except InvalidOperation:
        return False
    return ours.is_finite() and theirs.is_finite() and _close(float(ours), float(theirs))


def _close(found: float, expected: float) -> bool:
    if math.isnan(expected):
        return math.isnan(found)
    return math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
