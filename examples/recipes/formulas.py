"""A calculator as a tool, for `qwen3_tools.yaml`: formulas are read, never run as code."""

import ast
import operator
from fractions import Fraction

SIGNS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
LENGTH = 200
"""Characters of the longest formula; without powers, its value has about as many digits."""


def calculate(formula: str) -> str:
    """Compute the value of a formula.

    Args:
        formula: numbers, + - * / and parentheses, for example (12 + 3) * 4 / 5

    Returns:
        The value, exact or rounded to six places.
    """
    if len(formula) > LENGTH:
        raise ValueError(f"a formula has at most {LENGTH} characters")
    value = _value(ast.parse(formula.strip(), mode="eval").body)
    return str(value) if value.denominator == 1 else f"{float(value):.6f}".rstrip("0")


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.BinOp(left, sign, right) if type(sign) in SIGNS:
            return SIGNS[type(sign)](_value(left), _value(right))
        case ast.UnaryOp(sign, operand) if type(sign) in SIGNS:
            return SIGNS[type(sign)](_value(operand))
    raise ValueError("write numbers, + - * / and parentheses only")
