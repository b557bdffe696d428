"""Texts: the text of a message, and messages in words for people."""

from collections.abc import Mapping
from typing import Any

from groupwise import attachments
from groupwise.tool_call import ToolCall


def text_of(content: Any, between: str = "") -> str:
    """The text of a message's content, "" for None; of parts, those that are texts.

    between: what is put between parts.
    """
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content or () if isinstance(part, Mapping)]
    return between.join(text for text in texts if isinstance(text, str))


def encodable(text: str) -> str:
    """The text with U+FFFD for lone halves of surrogate pairs, which no tokenizer accepts; JSON and
    file names may bring them into messages."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def in_words(message: Any) -> str:
    """A message of any form: its role and content, and a line for each call of a tool."""
    if not isinstance(message, Mapping):
        return str(message)
    calls = message.get("tool_calls")
    made = [str(ToolCall.of(call)) for call in calls] if isinstance(calls, list | tuple) else []
    text = f"{message.get('role', 'message')}: {content_in_words(message.get('content'))}"
    return "\n".join([text, *(f"\N{RIGHTWARDS ARROW} {call}" for call in made)])


def content_in_words(content: Any) -> str:
    """The text of a message, with what is attached to it in words."""
    if not isinstance(content, list | tuple):
        return str(content or "")
    return "\n".join(map(_part, content))


def _part(part: Any) -> str:
    if not isinstance(part, Mapping):
        return str(part)
    if isinstance(part.get("text"), str):
        return part["text"]
    own = attachments.of_part(part)
    return f"[{part.get('type', 'part')}]" if own is None else attachments.named(own)
