"""Cutter: parts of long texts, so that the time to encode one depends on what is kept of it."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from groupwise_messages.texts import encodable

FIRST = 16
"""Characters a token of the first piece that is tried; most texts have 2 to 6."""


class Cutter:
    """Cuts texts of others, which may be of any length, before a tokenizer reads them."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def beginning(self, text: str, most: int) -> str:
        """The text, or a beginning of it that has more than `most` tokens."""
        return self._piece(text, most, lambda size: text[:size])

    def end(self, text: str, most: int) -> str:
        """The text, or an end of it that has more than `most` tokens."""
        return self._piece(text, most, lambda size: text[-size:])

    def messages(self, messages: Sequence[Mapping[str, Any]], most: int) -> list[dict[str, Any]]:
        """The messages with the beginnings of their texts."""
        return [
            {**each, "content": self._content(each["content"], most)}
            if "content" in each
            else {**each}
            for each in messages
        ]

    def _content(self, content: Any, most: int) -> Any:
        if isinstance(content, str):
            return self.beginning(content, most)
        if not isinstance(content, list | tuple):
            return content
        return [
            {**part, "text": self.beginning(part["text"], most)}
            if isinstance(part, Mapping) and isinstance(part.get("text"), str)
            else part
            for part in content
        ]

    def _piece(self, text: str, most: int, piece: Callable[[int], str]) -> str:
        """The first of growing pieces that has many more tokens than `most`, since those at the cut
        may be others than in the text; where the tokenizer drops characters, one that is as long as
        `most` tokens can be."""
        size = FIRST * (most + 1)
        while size < len(text):
            part = piece(size)
            if size > 2 * self._longest * (most + 1) or self._count(part) > 2 * (most + 1):
                return part
            size *= 2
        return text

    def _count(self, text: str) -> int:
        (ids,) = self.tokenizer([encodable(text)], add_special_tokens=False)["input_ids"]
        return len(ids)

    @cached_property
    def _longest(self) -> int:
        """The most characters of a token."""
        return max(map(len, self.tokenizer.get_vocab()))
