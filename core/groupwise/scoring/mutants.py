"""Mutants: gold answers as text, and changed a little."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any


def text_of(value: Any) -> str | None:
    """A gold answer as a completion states it: of several the first; None where it is blank."""
    if isinstance(value, list | tuple):
        return text_of(value[0]) if value else None
    if isinstance(value, Mapping):
        return json.dumps(value, default=str)
    is_blank = value is None or value != value  # NaN  # noqa: PLR0124
    return None if is_blank else str(value).strip() or None


def texts_of(value: Any) -> set[str | None]:
    """All texts of a gold answer that has several."""
    return {*map(text_of, value)} if isinstance(value, list | tuple) else {text_of(value)}


def _like(value: Any, text: str) -> Any:
    """A text as a value of the same type as another, in place of all that a list has; None if it
    has no such form."""
    with suppress(ValueError):
        if isinstance(value, list | tuple) and value:
            inner = _like(value[0], text)
            return None if inner is None else [inner]
        if type(value) in (str, int, float):
            return type(value)(text)
    return None


def changed_digit(value: Any) -> Any:
    """The answer with one more as its last digit (0 after 9), of lists and mappings each of their
    answers; None without a digit."""
    if isinstance(value, list | tuple | Mapping):
        names = [*value] if isinstance(value, Mapping) else range(len(value))
        changed = {name: changed_digit(value[name]) for name in names}
        if all(each is None for each in changed.values()):
            return None
        whole = {n: value[n] if each is None else each for n, each in changed.items()}
        return whole if isinstance(value, Mapping) else [*whole.values()]
    text = text_of(value) or ""
    places = [place for place, letter in enumerate(text) if letter in "0123456789"]
    if not places:
        return None
    at = places[-1]
    return _like(value, f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}")


def prefix(value: Any) -> Any:
    """The first half of the answer: of its characters or, of a mapping, of its entries; None of a
    single one."""
    if isinstance(value, Mapping):
        return dict(list(value.items())[: len(value) // 2])
    text = text_of(value) or ""
    return _like(value, text[: (len(text) + 1) // 2].strip()) if len(text) > 1 else None
