"""Counts what an answer leaves to compute: `2+3`, `10/2`, `5!` and `\\sqrt{25}` are not evaluated.

Sums, products, powers and functions are searched in the parsed expression before sympy evaluates
it; those that math-verify's grammar evaluates while parsing are searched in the text.
"""

import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from math import gcd
from typing import Any

from sympy import (
    Add,
    Basic,
    Derivative,
    Expr,
    Float,
    Integral,
    Limit,
    MatrixBase,
    Mul,
    Pow,
    Product,
    Rational,
    Sum,
    UnevaluatedExpr,
)
from sympy.core.function import Application, AppliedUndef

_CALCULUS = (Integral, Derivative, Sum, Product, Limit, UnevaluatedExpr)
# Evaluated by the grammar while parsing.
_EVALUATED = re.compile(
    r"\\[dt]?binom|\\choose|\\det|vmatrix|\\gcd|\\lcm|\\operatorname|\\Gamma|\\[bp]?mod\b"
)
_FUNCTION = re.compile(
    r"\\(?:ln|log|lg|exp|(?:arc|ar)?(?:sin|cos|tan|cot|sec|csc)h?)(?![a-zA-Z])"
    r"|(?<![a-zA-Z\\])e\s*\^"
)
_QUOTIENT = re.compile(
    r"(?P<whole>[0-9]+\s*)?\\frac\s*\{\s*(?P<a>-?[0-9]+)\s*\}\s*\{\s*(?P<b>-?[0-9]+)\s*\}"
    r"|(?<![0-9.])(?P<c>[0-9]+)\s*(?:/|\\div|:)\s*(?P<d>-?[0-9]+)(?![0-9.])"
)
_NUMBER = re.compile(r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|\.[0-9]+")
_SIGNS = re.compile(r"[-+]\s*(?:\\left)?[({]*\s*[-+]")
# Scientific notation, for numbers so large or small that it is usual: 10^2 is not evaluated.
_SCIENTIFIC = re.compile(
    r"-?(?:[0-9]+(?:\.[0-9]+)?\s*(?:\\times|\\cdot|\*)\s*)?"
    r"10\s*\^\s*(?:[4-9]|\{\s*(?:[4-9]|[1-9][0-9]+|-[3-9]|-[1-9][0-9]+)\s*\})"
)


def is_scientific(latex: str) -> bool:
    r"""Returns whether LaTeX is a number such as `2 \times 10^{6}`."""
    return _SCIENTIFIC.fullmatch(latex) is not None


def left_to_compute(latex: str, value: Any) -> Counter[str]:
    """Returns, by kind, the number of operations on numbers that are not carried out."""
    left = Counter(_in_expression(value))
    left += evaluated_as_read(latex)
    read = sum(isinstance(node, Application) for node in _preorder(value))
    left["function"] += max(0, len(_FUNCTION.findall(latex)) - read)
    for above, below, whole in _quotients(latex):
        improper = whole and abs(above) >= abs(below)
        left["quotient"] += below == 0 or above % below == 0 or improper
    # "2 3" and 2(3) are parsed as one number: count the text's numbers that the expression lacks.
    numbers = len(_NUMBER.findall(_QUOTIENT.sub(" 1 ", latex)))
    left["number"] += max(0, numbers - sum(_numbers(node) for node in _preorder(value)))
    left["sign"] += len(_SIGNS.findall(latex))
    return +left


def evaluated_as_read(latex: str) -> Counter[str]:
    """Returns the functions in LaTeX that are evaluated while parsing."""
    return Counter(match.group() for match in _EVALUATED.finditer(latex))


def reducible(latex: str) -> set[Fraction]:
    """Returns the values of the fractions of integers that are not in lowest terms."""
    return {Fraction(a, b) for a, b, _ in _quotients(latex) if b and (gcd(a, b) > 1 or b < 0)}


def _quotients(latex: str) -> Iterator[tuple[int, int, bool]]:
    for match in _QUOTIENT.finditer(latex):
        above, below = match["a"] or match["c"], match["b"] or match["d"]
        if max(len(above), len(below)) <= 1000:
            yield int(above), int(below), match["whole"] is not None


def _in_expression(value: Any) -> Iterator[str]:
    for node in _preorder(value):
        if isinstance(node, _CALCULUS):
            yield type(node).__name__
        elif isinstance(node, Pow) and node.exp == -1 and node.base.is_Integer:
            pass  # the denominator of a fraction
        elif _is_rational(node) or _collapses(node):
            yield type(node).__name__
        elif isinstance(node, Add):
            if len(Add.make_args(Add(*node.args))) < len(node.args):  # like terms
                yield "Add"
        elif isinstance(node, Mul) and _has_numbers_to_multiply(node):
            yield "Mul"


def _is_rational(node: Basic) -> bool:
    """Whether an operation on numbers has a rational result."""
    if not isinstance(node, Expr) or not node.args or node.free_symbols:
        return False
    exact = {number: Rational(str(number)) for number in node.atoms(Float)}
    return bool(node.xreplace(exact).doit().is_Rational)


def _collapses(node: Basic) -> bool:
    """Whether a function of numbers disappears when it is evaluated."""
    if not isinstance(node, Application) or isinstance(node, AppliedUndef) or node.free_symbols:
        return False
    return not node.doit().has(node.func)


def _has_numbers_to_multiply(product: Mul) -> bool:
    factors = list(_factors(product, 1))
    above = [number for number, power in factors if power > 0 and number != -1]
    below = [number for number, power in factors if power < 0]
    if len(above) > 1 or len(below) > 1 or 0 in above:
        return True
    if sum(bool(number < 0) for number, _ in factors) > 1:
        return True
    if not above or not below:
        return False
    quotient = above[0] / below[0]
    return bool(quotient.is_Float or (quotient.is_Integer and abs(below[0]) != 1) or below[0] == 1)


def _factors(node: Basic, power: int) -> Iterator[tuple[Any, int]]:
    """(number, power) of a product's numeric factors; denominators have the power -1."""
    if node.is_Number:
        yield node, power
    elif isinstance(node, Mul):
        for argument in node.args:
            yield from _factors(argument, power)
    elif isinstance(node, Pow) and node.exp == -1:
        yield from _factors(node.base, -power)


def _numbers(node: Basic) -> int:
    """How many numbers of the text a node accounts for: x_1 one, a product those of its factors."""
    if node.is_Symbol:
        return len(_NUMBER.findall(str(node)))
    return int(bool(node.is_Number))


def _preorder(value: Any) -> list[Basic]:
    """Every node of an expression; a product within a product is merged with it."""
    if isinstance(value, MatrixBase):
        return [node for entry in value.flat() for node in _preorder(entry)]
    if not isinstance(value, Basic):
        return []
    parts, waiting = [], [(value, False)]
    while waiting:
        node, inside = waiting.pop()
        if not inside:
            parts.append(node)
        below = isinstance(node, Mul) or (inside and isinstance(node, Pow))
        waiting += [
            (part, below and (isinstance(part, Mul) or (isinstance(part, Pow) and part.exp == -1)))
            for part in node.args
        ]
    return parts
