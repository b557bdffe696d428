"""Content: what a tool returns as the content of a message, a text or parts with pictures."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Part = Mapping[str, Any]
Content = str | list[Part]
KINDS = ("text", "image", "image_url")
"""Types of parts; the last one is OpenAI's."""


def content_of(value: Any) -> Content:
    """What a tool returned as the model reads it.

    A picture (PIL's images, or anything with `save` and `size`) is a part `{"type": "image"}`; so
    is one in a list, beside strings and parts as TRL's tools return them. A list of parts that are
    all text is one text. Anything else is JSON, or its `str`.
    """
    if is_picture(value):
        return [_part(value)]
    if isinstance(value, list | tuple) and value and all(map(_is_part, value)):
        parts = [*map(_part, value)]
        if any(part["type"] != "text" for part in parts):
            return parts
        if not any(isinstance(each, str) for each in value):
            return "".join(str(part["text"]) for part in parts)
    if value is None:
        return ""
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def joined(one: Content, other: Content) -> Content:
    """One content after the other."""
    if isinstance(one, str) and isinstance(other, str):
        return one + other
    return [*parts_of(one), *parts_of(other)]


def parts_of(content: Content) -> Sequence[Part]:
    """The parts of a content; of a text the only one, none if it is empty."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content


def pictures(content: Content) -> int:
    """How many pictures it has."""
    return sum(part["type"] != "text" for part in parts_of(content))


def is_picture(value: Any) -> bool:
    return callable(getattr(value, "save", None)) and hasattr(value, "size")


def _is_part(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return isinstance(value, str) or is_picture(value)
    kind = value.get("type")
    return kind in KINDS and kind in value


def _part(value: Any) -> Part:
    if isinstance(value, str):
        return {"type": "text", "text": value}
    return value if isinstance(value, Mapping) else {"type": "image", "image": value}
