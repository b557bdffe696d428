"""Plain data: values of Python's own types, as JSON that says what each of them is.

An iterator, such as a generator, becomes one of all its values.

Only plain data crosses between a sandbox and the run, in both directions. An object of a class that
an answer defines never does, so nothing that it overrides is ever called outside. Between a program
and tests that are code there are references besides (`groupwise_sandbox.references`).
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite
from pathlib import Path, PurePath
from typing import Any, TypeAlias

DEPTH = 64
"""How deeply values may be nested."""
LENGTH = 100_000
"""The most values that an iterator may give; they cross all at once."""
SAME_HASH = 100
"""The most values of a set or keys of a dictionary with one hash: each is compared with all of
them, which takes minutes for a message of those that a program has chosen for it."""
_EXACT = 2**53


class NotPlainError(ValueError):
    """A value is not plain data."""


Refer: TypeAlias = Callable[[Any], Any]
"""What stands for a value that is not plain data, or None."""
Resolve: TypeAlias = Callable[[str, Any], Any]
"""The value of what stands for one, by its kind. Raises NotPlainError for an unknown kind."""


class BoundError(NotPlainError):
    """A value is too large, or nested too deeply: what a program gave may have made it so."""


def encoded(value: Any, refer: Refer = lambda _: None, *, depth: int = DEPTH) -> Any:
    """What `json` writes for a value; subclasses of the built-in types count as these.

    Raises NotPlainError.
    """
    if depth < 0:
        raise BoundError(f"nested more than {DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, str | int | float) and (reference := refer(value)) is not None:
        return reference
    for kinds, write in _WRITERS:
        if isinstance(value, kinds):
            return write(value, lambda part: encoded(part, refer, depth=depth - 1))
    raise NotPlainError(f"an object of {type(value).__name__} is not plain data")


_Part = Callable[[Any], Any]
_WRITERS: Sequence[tuple[Any, Callable[[Any, _Part], Any]]] = (
    (str, lambda value, _: str(value)),
    (int, lambda value, _: int(value) if abs(value) < _EXACT else {"int": hex(value)}),
    (float, lambda value, _: float(value) if isfinite(value) else {"float": repr(float(value))}),
    (complex, lambda value, _: {"complex": [repr(value.real), repr(value.imag)]}),
    (bytes | bytearray, lambda value, _: {"bytes": bytes(value).hex()}),
    (list | deque, lambda value, part: [*map(part, value)]),
    (tuple, lambda value, part: {"tuple": [*map(part, value)]}),
    (range, lambda value, _: {"range": [value.start, value.stop, value.step]}),
    (set | frozenset, lambda value, part: {"set": [*map(part, value)]}),
    (dict, lambda value, part: {"dict": [[part(k), part(v)] for k, v in value.items()]}),
    (PurePath, lambda value, _: {"path": str(value)}),
    (Iterator, lambda value, part: {"iterator": [*map(part, _all_of(value))]}),
)


def _all_of(iterator: Iterator[Any]) -> list[Any]:
    values = [*islice(iterator, LENGTH + 1)]
    if len(values) > LENGTH:
        raise BoundError(f"an iterator gives more than {LENGTH:,} values")
    return values


def _unknown(kind: str, _: Any) -> Any:
    raise NotPlainError(f"not plain data: {kind!r:.60}")


def decoded(data: Any, resolve: Resolve = _unknown, *, depth: int = DEPTH) -> Any:
    """The value of what `encoded` wrote. Raises NotPlainError for anything else."""
    if depth < 0:
        raise BoundError(f"nested more than {DEPTH} deep")
    if data is None or isinstance(data, bool | str | int | float):
        return data
    if isinstance(data, list):
        return [decoded(each, resolve, depth=depth - 1) for each in data]
    if isinstance(data, dict) and len(data) == 1:
        [(kind, content)] = data.items()
        if kind not in _READERS:
            return resolve(kind, content)
        try:
            return _READERS[kind](content, lambda part: decoded(part, resolve, depth=depth - 1))
        except (TypeError, ValueError) as error:
            raise NotPlainError(f"not plain data: {error}") from error
    raise NotPlainError("not plain data")


_READERS: Mapping[str, Callable[[Any, _Part], Any]] = {
    "int": lambda content, _: int(content, 16),
    "float": lambda content, _: float(content),
    "complex": lambda content, _: complex(*map(float, content)),
    "bytes": lambda content, _: bytes.fromhex(content),
    "tuple": lambda content, part: tuple(map(part, content)),
    "path": lambda content, _: Path(content),
    "range": lambda content, _: range(*map(int, content)),
    "iterator": lambda content, part: iter([*map(part, content)]),
    "set": lambda content, part: set(_hashed([*map(part, content)])),
    "dict": lambda content, part: dict(
        zip(_hashed([part(k) for k, _ in content]), [part(v) for _, v in content], strict=True)
    ),
}


def _hashed(values: list[Any]) -> list[Hashable]:
    """Values of which few have the same hash. Raises BoundError, and TypeError for one without."""
    if values and max(Counter(map(hash, values)).values()) > SAME_HASH:
        raise BoundError(f"more than {SAME_HASH} values of a set or keys have the same hash")
    return values
