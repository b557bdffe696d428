"""Copies: what a run passes to users' code, and takes from it, so that neither changes the other's.

Lists, tuples and mappings are copied at every depth, and Pillow's pictures. Other leaves (numbers,
strings, arrays, tensors, objects) are shared.
"""

import sys
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

PALETTES = ("P", "PA")
"""Modes of pictures whose palette is written in place."""

PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def copied(value: Any, *, pictures: bool = True) -> Any:
    """A copy for users' code. Its pictures share their pixels with the run's until they are
    changed: `thumbnail`, `paste`, `putpixel` and `ImageDraw` copy them first, and the pixels of
    `load()` are read-only.

    pictures: whether they are copied, and so read from their files, if they are not in memory.
    """
    return _copied(value, _shallow if pictures else _same)


def kept(value: Any) -> Any:
    """A copy of what users' code returned, for the run. Its pictures have their own pixels, since
    that code may go on to draw on its own ones by any means."""
    return _copied(value, _deep)


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
    if _is_picture(one) and _is_picture(other) and one.im is other.im is not None:
        return True
    shapes = [(getattr(each, "shape", None), getattr(each, "dtype", None)) for each in (one, other)]
    if shapes != [(None, None)] * 2:
        return shapes[0] == shapes[1] and bool((one == other).all())
    return bool(one == other)


def _copied(value: Any, picture: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if kind is list or kind is tuple:  # a test here, since there may be millions of token ids
        return kind([x if type(x) in PLAIN else _copied(x, picture) for x in value])
    if kind in PLAIN:
        return value
    if kind is dict:
        return {name: _copied(inner, picture) for name, inner in value.items()}
    if isinstance(value, dict | list):  # of a class of its own
        own = copy(value)
        for place, inner in value.items() if isinstance(value, dict) else enumerate(value):
            own[place] = _copied(inner, picture)
        return own
    if isinstance(value, Mapping):
        return {name: _copied(inner, picture) for name, inner in value.items()}
    return picture(value) if _is_picture(value) else value


def _is_picture(value: Any) -> bool:
    # Without it there are no pictures, nor while another thread is importing it.
    picture = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return picture is not None and isinstance(value, picture)


def _same(picture: Any) -> Any:
    return picture


def _deep(picture: Any) -> Any:
    return picture.copy() if _is_readable(picture) else picture


def _shallow(picture: Any) -> Any:
    if not _is_readable(picture):
        return picture
    if picture.mode in PALETTES or getattr(picture, "n_frames", 1) > 1:
        return picture.copy()  # these change their pixels, or a palette beside them, in place
    own = object.__new__(type(picture))  # also of a file: its name and format are kept
    own.__dict__ = {**picture.__dict__, "info": _copied(picture.info, _shallow)}
    own.readonly = 1
    return own


def _is_readable(picture: Any) -> bool:
    """Whether its pixels are in memory, read from its file if need be; users' code gets the picture
    of a damaged file itself, which says what is wrong with it."""
    try:
        picture.load()
    except (OSError, SyntaxError, ValueError):
        return False
    return True
