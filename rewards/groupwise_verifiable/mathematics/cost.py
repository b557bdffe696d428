"""Refuses mathematics that would take math-verify too long to evaluate, before evaluating it."""

from math import inf, log10
from typing import Any

from sympy import Basic, MatrixBase, Pow, factorial

_DIGITS = 5_000  # most digits of a number that is evaluated; 10! has 7, 2^{1000} has 302


class TooCostlyError(ValueError):
    """An answer that would take too long to check."""


def refuse_costly(value: Any) -> None:  # math-verify's result: sympy objects, or a string
    """Raises TooCostlyError for powers and factorials of numbers that have too many digits."""
    if any(isinstance(node, Pow | factorial) and _size(node) > _DIGITS for node in _nodes(value)):
        raise TooCostlyError(f"a power or factorial of more than {_DIGITS:,} digits")


def _nodes(value: Any) -> list[Basic]:
    waiting, nodes = [value], []
    while waiting:
        node = waiting.pop()
        if isinstance(node, MatrixBase):
            waiting += node.flat()
        elif isinstance(node, Basic):
            nodes.append(node)
            waiting += node.args
    return nodes


def _size(node: Any) -> float:
    """Approximate number of digits; 1 for a symbol, so that its powers are bounded, too."""
    if isinstance(node, factorial):
        argument = 10 ** min(_size(node.args[0]), 12.0)
        return argument * log10(argument) if argument > 1 else 0.0
    if isinstance(node, Pow):
        exponent = _size(node.exp)
        return inf if exponent > 8 else max(_size(node.base), 0.3) * 10**exponent
    if node.is_Number:
        try:
            return max(0.0, log10(abs(float(node)) or 1.0))
        except OverflowError:
            return float(len(str(node)))
    sizes = [_size(argument) for argument in node.args] or [1.0]
    return sum(sizes) if node.is_Mul else max(sizes) + 0.3
