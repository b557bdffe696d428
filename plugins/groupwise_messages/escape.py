"""Escape: names of tokens in what others wrote, as words."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from groupwise_messages.thinking import TAGS


class Escape:
    """Writes names of tokens apart: `<|im_end|>` becomes `< |im_end|>`, which is read as words.

    None can arise by that, as no name has a space. names: those tokens; without any, all that is
    escaped stays as it is.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._lengths = sorted({*map(len, self._names)})
        firsts = "|".join(sorted({re.escape(name[0]) for name in self._names}))
        self._first = re.compile(firsts or "(?!)")

    def __call__(self, value: Any) -> Any:
        """A text, or any nesting of mappings and lists, keys included, without these names."""
        if not self._names:
            return value
        if isinstance(value, str):
            return self._first.sub(self._apart, value)
        if isinstance(value, Mapping):
            return {self(key): self(own) for key, own in value.items()}
        return [*map(self, value)] if isinstance(value, list | tuple) else value

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A chat message without these names, also where texts of its content make one together."""
        own: dict[str, Any] = self(message)
        content = message.get("content")
        return {**own, "content": self._parts(content)} if isinstance(content, list) else own

    def _parts(self, parts: Sequence[Any]) -> list[Any]:
        """Parts of a content; of texts that make a name together, one part with line breaks."""
        escaped = list[Any]()
        for is_text, run in groupby(parts, _is_text):
            if not is_text:
                escaped += map(self, run)
                continue
            texts = [self(part["text"]) for part in run]
            # Templates write texts one after the other, and some strip them.
            joined = "".join(map(str.strip, texts))
            if self(joined) != joined:
                texts = ["\n".join(texts)]
            escaped += [{"type": "text", "text": text} for text in texts]
        return escaped

    def _apart(self, first: re.Match[str]) -> str:
        start, text = first.start(), first.string
        named = any(text[start : start + length] in self._names for length in self._lengths)
        return f"{first[0]} " if named else first[0]


def control_tokens(tokenizer: Any, template: str, *, thinking: bool = False) -> set[str]:
    """Names of the tokens that structure a conversation: those that the tokenizer marks as special,
    and of its other added ones the tags that the chat template writes.

    White space and single characters are text. thinking: also tags of thinking, which prompts speak
    of and templates read in contents.
    """
    added = tokenizer.added_tokens_decoder.values()
    special = {*tokenizer.all_special_tokens, *(each.content for each in added if each.special)}
    tags = {each.content for each in added if _TAG.fullmatch(each.content)}
    written = {tag for tag in tags if tag in template}
    if not thinking:
        written -= {*TAGS, *TAGS.values()}
    return {name for name in special | written if len(name.strip()) > 1}


_TAG = re.compile(r"[^\w\s].*\w.*[^\w\s]")
"""`<tool_call>`, `[INST]`; some tokenizers have words and signs among added tokens, too."""


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)
