"""Foreign JSON: what other programs and people have written, read without trust in its form."""

import json
from typing import Any

DEPTH = 100
"""Most lists and objects in each other. Python's own limit depends on what calls the reader, and
what it admits may still be too deep for code that copies, compares or writes the value."""


def read(text: str | bytes | bytearray, **options: Any) -> Any:
    """The value of a JSON text, whatever it is; options are those of `json.loads`.

    Raises ValueError for anything else, and for lists and objects nested more than `DEPTH` times.
    """
    try:
        value = json.loads(text, **options)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if _is_deep(text) and _depth(value) > DEPTH:
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP = f"lists and objects are nested more than {DEPTH} times"


def _is_deep(text: str | bytes | bytearray) -> bool:
    """Whether a text has enough brackets for that; most have not, and need no closer look."""
    if isinstance(text, str):
        return text.count("[") + text.count("{") > DEPTH
    return text.count(b"[") + text.count(b"{") > DEPTH


def _depth(value: Any) -> int:
    depth, layer = 0, [value]
    while layer := [each for each in layer if isinstance(each, list | dict)]:
        depth += 1
        layer = [
            part for each in layer for part in (each.values() if isinstance(each, dict) else each)
        ]
    return depth
