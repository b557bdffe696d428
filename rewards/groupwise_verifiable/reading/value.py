"""Values of expressions: exact fractions where they are rational, else 60 digits.

Everything is bounded, so that no answer takes long: `9^{9^{9^9}}` has no value here.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache, reduce
from math import ceil, comb, factorial, floor, gcd, isqrt, lcm
from typing import Any, TypeAlias

import mpmath

from groupwise_verifiable.reading.node import Node
from groupwise_verifiable.reading.words import LARGE

_CONTEXT = mpmath.mp.clone()
_CONTEXT.dps = 60
_NEAR = _CONTEXT.mpf(10) ** -35
_ROUNDING = _CONTEXT.mpf(10) ** -20  # what is smaller may be an error of rounding
_DIGITS = 3_000  # most digits of an exact number
_LARGEST = 10**9  # exponent
_POINTS = 3
_SQUARES = (7, 2603, 53, 14107, 13, 5903, 131)
"""Squares of three times the values of unknowns, small and large in turn."""

Value: TypeAlias = Any
"""A Fraction where it is rational, else mpmath's mpf or mpc, which have no types."""


class NoValueError(ValueError):
    """An expression without a value: unknown functions, 1/0, numbers of too many digits."""


def value(node: Node, point: Mapping[str, Value] | None = None) -> Value:
    """Returns the value where unknowns have these values; raises NoValueError without one."""
    try:
        return _plain(_value(node, point or {}))
    except (ArithmeticError, ValueError, TypeError, KeyError) as error:
        raise NoValueError(str(error)) from error


@lru_cache(maxsize=4096)
def rational(node: Node) -> Fraction | None:
    """Returns the value of an expression that is a rational number, else None."""
    try:
        result = value(node)
    except NoValueError:
        return None
    return result if isinstance(result, Fraction) else None


def points(names: frozenset[str], *, positive: bool = True) -> list[dict[str, Value]]:
    """Returns points at which expressions are compared: a value for each name, none special.

    positive: all values are above 0; else some are below, in the last two points.
    """
    ordered = sorted(names)
    every = [
        {
            name: _CONTEXT.sqrt(_SQUARES[(3 * index + 2 * point) % len(_SQUARES)]) / (3 + index)
            for index, name in enumerate(ordered)
        }
        for point in range(_POINTS)
    ]
    if positive:
        return every
    signs = [(1, 1), (-1, -1), (-1, 1), (1, -1)]
    return every + [
        {name: pair[index % 2] * number for index, (name, number) in enumerate(every[0].items())}
        for pair in signs[1:]
    ]


def equal(one: Value, other: Value) -> bool:
    """Returns whether two values are equal; a rational number and another one never are."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    if isinstance(one, Fraction) != isinstance(other, Fraction):
        return False
    return bool(abs(one - other) <= _NEAR * max(abs(one), abs(other)))


def equivalent(one: Node, other: Node, *, exact: bool = True, positive: bool = True) -> bool:
    """Returns whether two expressions have equal values at all points.

    exact: a rational constant is equal to no irrational one, however near, see `equal`; positive:
    only where all unknowns are above 0.
    """
    names = one.unknowns | other.unknowns
    try:
        pairs = [
            (value(one, point), value(other, point)) for point in points(names, positive=positive)
        ]
    except NoValueError:
        return False
    if not names and (exact or all(isinstance(each, Fraction) for each in pairs[0])):
        return equal(*pairs[0])
    return all(equal(_float(first), _float(second)) for first, second in pairs)


def proportional(one: Node, other: Node) -> bool:
    """Returns whether the quotient of two expressions is the same number at all points."""
    names = one.unknowns | other.unknowns
    try:
        quotients = [
            _float(value(one, point)) / _float(value(other, point)) for point in points(names)
        ]
    except (NoValueError, ArithmeticError):
        return False
    return all(abs(each - quotients[0]) <= _NEAR * abs(quotients[0]) for each in quotients)


def _float(number: Value) -> mpmath.mpf | mpmath.mpc:
    if isinstance(number, Fraction):
        return _CONTEXT.mpf(number.numerator) / number.denominator
    return number


def _plain(number: Value) -> Value:
    """A complex number without an imaginary part as a real one."""
    if isinstance(number, _CONTEXT.mpc):
        if abs(number.imag) <= _NEAR * abs(number.real):
            return number.real
        if abs(number.real) <= _NEAR * abs(number.imag):
            return _CONTEXT.mpc(0, number.imag)
    return number


def _value(node: Node, point: Mapping[str, Value]) -> Value:  # noqa: C901, PLR0911 - a case for each kind
    kind, args = node.kind, node.args
    if kind == "number":
        return Fraction(node.text)
    if kind == "repeating":
        return _repeating(node.text)
    if kind == "based":
        digits, base = node.text.split("_")
        return Fraction(int(digits, int(base)))
    if kind == "name":
        return _constant(node.text) if node.text not in point else point[node.text]
    if kind == "unit":
        return _value(args[0], point) * LARGE.get(node.text, 1)
    if kind in ("label", "money"):
        return _value(args[0], point)
    if kind == "percent":
        return _value(args[0], point) / 100
    if kind == "degrees":
        return _float(_value(args[0], point)) * _CONTEXT.pi / 180
    if kind == "call":
        return _call(node.text, [_value(part, point) for part in args])
    if kind == "pow" and args[0] == Node("name", text="e"):
        return _CONTEXT.exp(_float(_value(args[1], point)))
    numbers = [_value(part, point) for part in args]
    return _OPERATIONS[kind](*numbers)


def _repeating(text: str) -> Fraction:
    whole, _, rest = text.partition(".")
    decimals, repeated = rest.rstrip(")").split("(")
    once = Fraction(int(whole + decimals or 0), 10 ** len(decimals))
    return once + Fraction(int(repeated), 10 ** len(decimals) * (10 ** len(repeated) - 1))


def _constant(name: str) -> Value:
    return {"pi": +_CONTEXT.pi, "e": +_CONTEXT.e, "i": _CONTEXT.mpc(0, 1)}[name]


def _sum(one: Value, other: Value) -> Value:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one + other
    one, other = _float(one), _float(other)
    small, large = sorted((abs(one), abs(other)))
    if _ROUNDING < small < _NEAR * large:  # 7^10000 - 1 is not 7^10000
        raise NoValueError("a sum of which one term is lost in the digits of the other")
    return one + other


def _product(one: Value, other: Value) -> Value:
    exact = isinstance(one, Fraction) and isinstance(other, Fraction)
    return one * other if exact else _float(one) * _float(other)


def _quotient(one: Value, other: Value) -> Value:
    exact = isinstance(one, Fraction) and isinstance(other, Fraction)
    return one / other if exact else _float(one) / _float(other)


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Fraction) and exponent.denominator > 1 and isinstance(base, Fraction):
        return _power(_root(base, Fraction(exponent.denominator)), Fraction(exponent.numerator))
    if abs(exponent) > _LARGEST:
        raise NoValueError("an exponent of more than nine digits")
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if size * abs(exponent) < 4 * _DIGITS:
            return Fraction(base ** int(exponent))
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        return _float(base) ** int(exponent)
    return _CONTEXT.power(_float(base), _float(exponent))


def _root(radicand: Value, index: Value) -> Value:
    if isinstance(radicand, Fraction) and isinstance(index, Fraction) and index.denominator == 1:
        degree = int(index)
        if 0 < degree <= 100:
            above, below = (
                _integer_root(abs(part), degree) for part in radicand.as_integer_ratio()
            )
            odd = radicand < 0 and degree % 2
            if above is not None and below is not None and (radicand >= 0 or odd):
                return Fraction(-above if odd else above, below)
            if odd:
                return -_CONTEXT.root(_float(-radicand), degree)
    if index == 2:
        return _CONTEXT.sqrt(_float(radicand))
    return _CONTEXT.power(_float(radicand), 1 / _float(index))


def _integer_root(number: int, degree: int) -> int | None:
    """The root if it is an integer."""
    root = isqrt(number) if degree == 2 else int(_CONTEXT.nint(_CONTEXT.root(number, degree)))
    return root if root**degree == number else None


def _mixed(whole: Value, above: Value, below: Value) -> Value:
    return _sum(whole, _quotient(above, below))


_OPERATIONS: dict[str, Callable[..., Value]] = {
    "add": lambda *numbers: reduce(_sum, numbers),
    "neg": lambda number: -number,
    "mul": lambda *numbers: reduce(_product, numbers),
    "div": _quotient,
    "pow": _power,
    "root": _root,
    "mixed": _mixed,
}


_FUNCTIONS = {
    name: name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")
} | {f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan")}


def _call(name: str, numbers: list[Value]) -> Value:  # noqa: PLR0911 - a case for each kind
    if name in _OF_INTEGERS:
        return Fraction(_OF_INTEGERS[name](*(_integer(number) for number in numbers)))
    first = numbers[0]
    if name in _EXACT:
        return _by_gamma(name, numbers)
    if name == "abs":
        return abs(first)
    if name in ("floor", "ceil"):
        real = first if isinstance(first, Fraction) else first.real
        return Fraction((floor if name == "floor" else ceil)(real))
    if name == "log":
        base = numbers[1] if len(numbers) > 1 else Fraction(10)
        return _rounded(_CONTEXT.log(_float(first)) / _CONTEXT.log(_float(base)))
    if name == "exp":
        return _CONTEXT.exp(_float(first))
    if name == "cis":
        return _CONTEXT.expj(_float(first))
    return _rounded(getattr(_CONTEXT, _FUNCTIONS[name])(_float(first)))


def _rounded(number: Value) -> Value:
    """A function's value as a fraction where it is one of a small denominator: log 100, sin 30°."""
    if isinstance(number, _CONTEXT.mpf) and abs(number) < 10**6:
        twelfths = _CONTEXT.nint(number * 12)
        if abs(number * 12 - twelfths) < _NEAR:
            return Fraction(int(twelfths), 12)
    return number


def _integer(number: Value) -> int:
    if not isinstance(number, Fraction) or number.denominator > 1 or abs(number) > 10**_DIGITS:
        raise NoValueError("not an integer")
    return int(number)


def _by_gamma(name: str, numbers: list[Value]) -> Value:
    """A factorial or a binomial coefficient: exact of small integers; of large ones, and where n is
    no integer at the points at which expressions are compared, by the gamma function."""
    if any(abs(number) > _LARGEST for number in numbers):
        raise NoValueError("a factorial of ten digits")
    are_integers = all(isinstance(n, Fraction) and n.denominator == 1 for n in numbers)
    if are_integers and min(numbers) < 0:
        raise NoValueError("the factorial of a number below 0")
    if are_integers and numbers[0] <= _EXACT[name]:
        return Fraction((factorial if name == "factorial" else comb)(*map(int, numbers)))
    function = _CONTEXT.factorial if name == "factorial" else _CONTEXT.binomial
    return function(*map(_float, numbers))


_EXACT = {"factorial": 1000, "binom": 3000}
"""The largest n of which they are computed exactly."""

_OF_INTEGERS: dict[str, Callable[..., int]] = {
    "gcd": gcd,
    "lcm": lcm,
    "max": max,
    "min": min,
}
