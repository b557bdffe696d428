"""Copies: what a run passes to users' code, and takes from it, so that neither changes the other's.

Lists, tuples and mappings are copied at every depth, and values of a known medium, such as
pictures. Other leaves (numbers, strings, arrays, tensors, objects) are shared.
"""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from groupwise.kit.media import Medium, medium_of

Change = Callable[[Medium, Any], Any]

PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def copied(value: Any, *, pictures: bool = True) -> Any:
    """A copy for users' code. Its pictures share their content with the run's until they are
    changed (`Medium.shared`).

    pictures: whether they are copied, and so read from their files, if they are not in memory.
    """
    return _copied(value, _shared if pictures else _same)


def kept(value: Any) -> Any:
    """A copy of what users' code returned, for the run. Its pictures have their own pixels, since
    that code may go on to draw on its own ones by any means."""
    return _copied(value, _own)


def equal(one: Any, other: Any) -> bool:
    """Whether two values are equal at every depth; pictures and arrays by their content. Tuples
    equal lists."""
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        same = one.keys() == other.keys()
        return same and all(equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    medium = medium_of(one)
    if medium is not None and medium is medium_of(other):
        return medium.equal(one, other)
    shapes = [(getattr(each, "shape", None), getattr(each, "dtype", None)) for each in (one, other)]
    if shapes != [(None, None)] * 2:
        return shapes[0] == shapes[1] and bool((one == other).all())
    return bool(one == other)


def _copied(value: Any, change: Change) -> Any:
    kind = type(value)
    if kind is list or kind is tuple:  # a test here, since there may be millions of token ids
        return kind([x if type(x) in PLAIN else _copied(x, change) for x in value])
    if kind in PLAIN:
        return value
    if kind is dict:
        return {name: _copied(inner, change) for name, inner in value.items()}
    if isinstance(value, dict | list):  # of a class of its own
        own = copy(value)
        for place, inner in value.items() if isinstance(value, dict) else enumerate(value):
            own[place] = _copied(inner, change)
        return own
    if isinstance(value, Mapping):
        return {name: _copied(inner, change) for name, inner in value.items()}
    medium = medium_of(value)
    return value if medium is None else change(medium, value)


def _shared(medium: Medium, value: Any) -> Any:
    return medium.shared(value)


def _own(medium: Medium, value: Any) -> Any:
    return medium.own(value)


def _same(_: Medium, value: Any) -> Any:
    return value
