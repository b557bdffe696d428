"""constants: the value of a Python expression that has one without being executed."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

LARGEST = 1e12
"""Numbers beyond this are not computed."""
MOST = 10_000
"""The characters and items of a value; of settings none is longer, but a script may double one."""
ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
ROUNDING: Mapping[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "round": round,
    "min": min,
    "max": max,
}


class NotConstantError(Exception):
    """An expression whose value only execution would show."""


def constant(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value: of literals, arithmetic on numbers, `int`, `os.path.join`, and of `names`.

    names: known values by dotted name. An attribute of a package that is no such name is its own
    last part: `torch.bfloat16` is "bfloat16". Raises NotConstantError for anything else, and for
    values of more than MOST characters and items.
    """
    try:
        value = _value(node, names)
        if _size(value) > MOST:
            raise NotConstantError
        return value
    except NotConstantError:
        raise
    except (ArithmeticError, TypeError, ValueError, RecursionError, LookupError) as error:
        raise NotConstantError from error


def dotted(node: ast.expr) -> str:
    """`a.b.c` as text; "" if it is no such name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:  # noqa: C901, PLR0911 (one a kind)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str | None):
        return node.value
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(each, names) for each in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = [_value(key, names) for key in node.keys if key is not None]
        return dict(zip(keys, [_value(each, names) for each in node.values], strict=True))
    if isinstance(node, ast.Name | ast.Attribute):
        return _named(node, names)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand, names)
    if isinstance(node, ast.BinOp):
        return _computed(node, names)
    if isinstance(node, ast.IfExp):
        return _value(node.body if _value(node.test, names) else node.orelse, names)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        compare = COMPARISONS[type(node.ops[0])]
        return compare(_value(node.left, names), _value(node.comparators[0], names))
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each, names) for each in node.values)
    if isinstance(node, ast.Call):
        return _called(node, names)
    raise NotConstantError


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    return 1 + sum(map(_size, inner)) if isinstance(inner, list) else 1


def _named(node: ast.expr, names: Mapping[str, Any]) -> Any:
    name = dotted(node)
    if name in names:
        return names[name]
    if name.startswith("torch."):
        return name.rpartition(".")[2]
    raise NotConstantError


def _computed(node: ast.BinOp, names: Mapping[str, Any]) -> Any:
    left, right = _value(node.left, names), _value(node.right, names)
    if isinstance(node.op, ast.Add) and isinstance(left, str) and isinstance(right, str):
        return left + right
    left, right = _number(node.left, names), _number(node.right, names)
    if isinstance(node.op, ast.Pow) and (abs(right) > 64 or abs(left) > 1e4):
        raise NotConstantError
    value = ARITHMETIC[type(node.op)](left, right)
    if abs(value) > LARGEST:
        raise NotConstantError
    return value


def _number(node: ast.expr, names: Mapping[str, Any]) -> Any:
    value = _value(node, names)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotConstantError
    return value


def _text(node: ast.expr, names: Mapping[str, Any]) -> str:
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    return str(_value(inner, names))


def _called(node: ast.Call, names: Mapping[str, Any]) -> Any:
    name = dotted(node.func)
    if node.keywords:
        raise NotConstantError
    if name == "os.getcwd" and not node.args:
        return ""
    values = [_value(each, names) for each in node.args]
    if name in ROUNDING and values:
        return ROUNDING[name](*values)
    if name == "os.path.join" and all(isinstance(each, str) for each in values):
        return "/".join(filter(None, values))
    raise NotConstantError
