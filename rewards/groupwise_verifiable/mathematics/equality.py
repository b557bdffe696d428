"""Mathematical equality of two readings, in any form."""

import re
from collections.abc import Iterator
from math import inf, isinf
from typing import Any

from math_verify import verify
from math_verify.grader import is_equation
from sympy import And, Expr, Rational
from sympy.core.function import AppliedUndef

from groupwise_verifiable.mathematics.reading import Reading

_ABOUT_PERCENT = re.compile(r"%|\bper\s?cent", re.IGNORECASE)
_ABOUT_DEGREES = re.compile(r"degree|°|\\circ|angle|temperature", re.IGNORECASE)


def same(gold: Reading, answer: Reading, prompt: str) -> bool:
    """Returns whether the answer equals gold, in any form."""
    if answer.degrees and not gold.degrees and not _ABOUT_DEGREES.search(prompt):
        return False
    if {gold.bracket, answer.bracket} in ({"\\{", "("}, {"\\{", "["}):
        return False  # a set is no pair, point or interval
    if gold.bases and len(gold.bases | answer.bases) > 1:
        return False  # math-verify ignores bases
    numbers = _sides(answer.value)
    if any(not equal(numbers[0], number) for number in numbers):
        return False
    values = _interpretations(gold, answer, prompt)
    # x <= 5 equals the interval that ends at 5.
    return any(
        not _differ(gold.value, value) and equal(gold.value, value, allow_set_relation_comp=True)
        for value in values
    )


def _differ(gold: Any, answer: Any) -> bool:
    """Whether two expressions differ numerically at a test point, which needs no simplification.

    math-verify rounds decimals to six places, so that 0.0000001 would equal 0.
    """
    if not isinstance(gold, Expr) or not isinstance(answer, Expr):
        return False
    symbols = gold.free_symbols | answer.free_symbols
    if not symbols and not gold.is_Float and not answer.is_Float:
        return False
    if gold.is_Symbol or answer.is_Symbol:  # a name may be a product of letters
        return False
    names = sorted({str(symbol) for symbol in symbols})
    point = {symbol: Rational(names.index(str(symbol)) * 7 + 13, 11) for symbol in symbols}
    right, other = _at(gold, point), _at(answer, point)
    if right is None or other is None or (isinf(abs(right)) and isinf(abs(other))):
        return False
    return abs(right - other) > 1e-5 * min(abs(right), abs(other)) + 1e-15


def _at(expression: Expr, point: dict[Any, Rational]) -> complex | None:
    """The value at a point; None if it is no number, for an integral or unknown function."""
    try:
        return complex(expression.subs(point).evalf(15))
    except OverflowError:
        return complex(inf)
    except (TypeError, ValueError, ArithmeticError):
        return None


def _interpretations(gold: Reading, answer: Reading, prompt: str) -> Iterator[Any]:
    """Possible values of the answer, where one of answer and gold is a percentage."""
    value = answer.value
    if gold.percent == answer.percent:
        yield value
    elif gold.percent:  # 50, or 0.5, for 50%
        yield value
        if isinstance(value, Expr):
            yield 100 * value
    else:
        if _ABOUT_PERCENT.search(prompt):
            yield value
        if isinstance(value, Expr) and not _is_over_one(gold.value):
            yield Rational(1, 100) * value


def _is_over_one(value: Any) -> bool:
    return bool(value.is_number and abs(value) > 1) if isinstance(value, Expr) else True


def _sides(value: Any) -> list[Any]:
    """The sides without unknowns of an answer that is an equation; 6 = 5 has two."""
    if not is_equation(value):
        return []
    equations = value.args if isinstance(value, And) else (value,)
    sides = [side for equation in equations for side in equation.args]
    return [side for side in sides if not side.free_symbols and not side.has(AppliedUndef)]


def equal(gold: Any, answer: Any, **options: bool) -> bool:  # sympy objects or strings
    """Returns whether math-verify shows two values to be equal."""
    try:
        return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True, **options))
    except MemoryError:
        raise
    except Exception:  # sympy cannot compare them, so they count as different
        return False
