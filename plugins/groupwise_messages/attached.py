"""Attached: the pictures that belong to a row's prompt, and its words."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from groupwise import attachments
from groupwise_messages.pictures import PARTS
from groupwise_messages.texts import text_of

PLACE = re.compile(r"(Picture \d+: ?)?<image>\s*")
"""What stands for a picture in the texts of some data sets, such as verl's."""


def pictures_of(row: Mapping[str, Any]) -> list[Any]:
    """The pictures of a row as users give them: those of its columns `image` or `images`, then
    those in the messages of its prompt.

    Parts of messages without a picture, `{"type": "image"}`, are the places of the columns'; None
    for a place that is left over.
    """
    columns = attachments.in_columns(row)
    own = [*_in_messages(row["prompt"])]
    if None not in own:
        return [*columns, *own]
    left = iter(columns)
    return [*(next(left, None) if part is None else part for part in own), *left]


def instruction_of(prompt: Any) -> Any:
    """A prompt in words: the text of the user's messages without the places of pictures; anything
    but messages as it is."""
    if not isinstance(prompt, list | tuple):
        return prompt
    own = [part for part in prompt if isinstance(part, Mapping) and part.get("role") == "user"]
    texts = [text_of(message.get("content"), "\n") for message in own]
    return PLACE.sub("", "\n".join(texts))


def _in_messages(prompt: Any) -> Iterator[Any]:
    for message in prompt if isinstance(prompt, list | tuple) else ():
        parts = message.get("content") if isinstance(message, Mapping) else None
        for part in parts if isinstance(parts, list | tuple) else ():
            if isinstance(part, Mapping) and part.get("type") in PARTS:
                yield attachments.of_part(part)
