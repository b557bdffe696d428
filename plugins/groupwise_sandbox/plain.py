"""Plain data: values of Python's own types, as JSON that says what each of them is.

Only plain data crosses between a sandbox and the run, in both directions. An object of a class that
an answer defines never does, so nothing that it overrides is ever called outside.
"""

import math
from collections import deque
from typing import Any

DEPTH = 64
"""How deeply values may be nested."""
_EXACT = 2**53


class NotPlainError(ValueError):
    """A value is not plain data, or nested too deeply."""


def encoded(value: Any, depth: int = DEPTH) -> Any:
    """What `json` writes for a value; subclasses of the built-in types count as these.

    Raises NotPlainError.
    """
    if depth < 0:
        raise NotPlainError(f"nested more than {DEPTH} deep")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if isinstance(value, int):
        return int(value) if -_EXACT < value < _EXACT else {"int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, list | deque):
        return [encoded(each, depth - 1) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [encoded(each, depth - 1) for each in value]}
    if isinstance(value, set | frozenset):
        return {"set": [encoded(each, depth - 1) for each in value]}
    if isinstance(value, dict):
        pairs = [[encoded(k, depth - 1), encoded(v, depth - 1)] for k, v in value.items()]
        return {"dict": pairs}
    raise NotPlainError(f"an object of {kind.__name__} is not plain data")


def decoded(data: Any, depth: int = DEPTH) -> Any:
    """The value of what `encoded` wrote. Raises NotPlainError for anything else."""
    if depth < 0:
        raise NotPlainError(f"nested more than {DEPTH} deep")
    if data is None or isinstance(data, bool | str | int | float):
        return data
    if isinstance(data, list):
        return [decoded(each, depth - 1) for each in data]
    if isinstance(data, dict) and len(data) == 1:
        [(kind, content)] = data.items()
        try:
            return _tagged(kind, content, depth)
        except (TypeError, ValueError, KeyError) as error:
            raise NotPlainError(f"not plain data: {error}") from error
    raise NotPlainError("not plain data")


def _tagged(kind: str, content: Any, depth: int) -> Any:
    match kind:
        case "int":
            return int(content, 16)
        case "float":
            return float(content)
        case "bytes":
            return bytes.fromhex(content)
        case "complex":
            return complex(*map(float, content))
        case "tuple":
            return tuple(decoded(each, depth - 1) for each in content)
        case "set":
            return {decoded(each, depth - 1) for each in content}
        case "dict":
            return {decoded(k, depth - 1): decoded(v, depth - 1) for k, v in content}
    raise NotPlainError(f"not plain data: {kind!r}")
