"""The text of a completion, and the answer inside it. Every function takes linear time.

Completions come from the model being trained, so they are looked at as an adversary's.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def content(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """Returns the text of a completion: the string itself, or its last message's content."""
    if isinstance(completion, str):
        return completion
    if not completion:
        return ""
    text = completion[-1].get("content")
    if text is None:  # a message that only calls tools has no content
        return ""
    if not isinstance(text, str):
        raise ValueError(
            f"a message's content must be text, got {type(text).__name__}"
        )  # users' mistakes are ValueErrors throughout
    return text


def outside_thinking(text: str) -> str:
    """Returns what stands outside of `<think>...</think>`.

    Thinking that is closed but never opened began in the prompt, and one never closed goes on to
    the end. A tag inside of thinking does not begin it anew: it ends at its last closing tag.
    """
    first, *later = text.split("<think>")
    ended = [first, *(part for part in later if "</think>" in part)]
    return "\n".join(part.rpartition("</think>")[2] for part in ended)


def tagged(text: str, tag: str) -> str | None:
    """Returns the stripped content of the last `<tag>...</tag>`, None when there is none.

    Pairs are read from the left, as reasoning-gym's `extract_answer` reads them: an opening tag
    takes everything up to the next closing tag, other opening tags included. Those inside of
    thinking do not count.
    """
    text = outside_thinking(text)
    opening, closing = f"<{tag}>", f"</{tag}>"
    last, position = None, 0
    while True:
        start = text.find(opening, position)
        if start < 0:
            return last
        start += len(opening)
        end = text.find(closing, start)
        if end < 0:
            return last
        last = text[start:end].strip()
        position = end + len(closing)


def prompt_text(prompt: Any) -> str:
    """Returns the text of a prompt: of messages all of it, a line each; of anything else none."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence):
        return ""
    parts = [part.get("content") for part in prompt if isinstance(part, Mapping)]
    return "\n".join(part for part in parts if isinstance(part, str))
