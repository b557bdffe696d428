"""Content: what a tool returns as the content of a message, a text or parts with pictures."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise import attachments
from groupwise_messages.pictures import PARTS

Part = Mapping[str, Any]
Content = str | list[Part]
KINDS = ("text", *PARTS)
"""Types of parts."""
NOT_SELF_CONTAINED = (
    "a picture in a message must be opened by what sends it, or be bytes or a data: URL; no file "
    "or web address of a message is read during a run"
)


def content_of(value: Any) -> Content:
    """What a tool returned as the model reads it.

    A picture (PIL's images, or anything with `save` and `size`) is a part `{"type": "image"}`; so
    is one in a list, beside strings and parts as TRL's tools return them. Without an open picture
    mappings are parts only if they have no further keys, since they may be the tool's data. A list
    of parts that are all text is one text. Anything else is JSON, or its `str`.
    """
    if is_picture(value):
        return [_part(value)]
    if isinstance(value, list | tuple) and _are_parts(value):
        return of_parts(value)
    if value is None:
        return ""
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def of_parts(parts: Sequence[Any]) -> Content:
    """Parts, beside which pictures and strings may stand, as a content."""
    whole = [*map(_part, parts)]
    if any(part["type"] != "text" for part in whole):
        return whole
    return "".join(str(part["text"]) for part in whole)


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


def is_self_contained(content: Any) -> bool:
    """Whether no picture of it names a file or an address."""
    parts = content if isinstance(content, list | tuple) else ()
    blocks = [each for each in parts if isinstance(each, Mapping) and each.get("type") in KINDS]
    own = map(attachments.of_part, blocks)
    return all(each is None or attachments.is_self_contained(each) for each in own)


def is_picture(value: Any) -> bool:
    return callable(getattr(value, "save", None)) and hasattr(value, "size")


def is_part(value: Any) -> bool:
    """Whether it may stand in a list of parts: a part, a picture or a string."""
    if not isinstance(value, Mapping):
        return isinstance(value, str) or is_picture(value)
    kind = value.get("type")
    return kind in KINDS and kind in value


def _are_parts(values: Sequence[Any]) -> bool:
    """Whether a list is one of parts, and not one of strings, or of data that resemble parts."""
    if not all(map(is_part, values)) or all(isinstance(value, str) for value in values):
        return False
    return any(map(_is_open, values)) or all(map(_is_bare, values))


def _is_bare(value: Any) -> bool:
    return not isinstance(value, Mapping) or len(value) == 2


def _is_open(value: Any) -> bool:
    return attachments.is_open(attachments.of_part(value) if isinstance(value, Mapping) else value)


def _part(value: Any) -> Part:
    if isinstance(value, str):
        return {"type": "text", "text": value}
    return value if isinstance(value, Mapping) else {"type": "image", "image": value}
