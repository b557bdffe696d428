"""JSON that others wrote, such as agents, servers, models and files of data."""

import json
from typing import Any

DEEPEST = 100
"""Objects and lists within each other; a value of this depth can be copied, compared and written as
JSON again wherever it comes."""


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for whatever cannot be read: also for JSON that
    is nested deeper than DEEPEST, and integers of more digits than Python takes."""
    try:
        value = json.loads(text)
    except RecursionError:
        value = None
        is_deep = True
    else:
        is_deep = _is_deep(value)
    if is_deep:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [each for one in inner for each in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return False
    return True
