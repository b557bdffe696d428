"""Completion: its text, and the answer inside it.

Every function takes linear time: the trained model writes the texts, and may learn to exploit or
slow down a parser.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise_messages.thinking import TAGS

_THINKING = (
    *TAGS.items(),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),  # gpt-oss
)
"""What opens thinking, and what ends it."""

OTHERS = ("tool", "user", "system")
"""Roles of messages that the policy did not write."""


def content(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """Returns the text of a completion: the string itself, or the content of the policy's last
    message.

    What a tool or a user said after the policy's last message is not the policy's answer.
    """
    if isinstance(completion, str):
        return completion
    messages = [each for each in completion if each.get("role") not in OTHERS]
    return _text(messages[-1]) if messages else ""


def whole_text(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """Returns all texts of a completion: the string itself, or its messages' contents one after the
    other, as a policy's fact `character_ends` counts them."""
    return completion if isinstance(completion, str) else "".join(map(_text, completion))


def _text(message: Mapping[str, Any]) -> str:
    text = message.get("content")
    if text is None:  # a message that only calls tools has no content
        return ""
    if not isinstance(text, str):
        raise ValueError(
            f"a message's content must be text, got {type(text).__name__}"
        )  # a ValueError, as for any mistake in the data, not a TypeError
    return text


def judged_texts(completions: Sequence[Any], columns: Mapping[str, Any]) -> list[str]:
    """Returns the text of each completion, preceded by the thinking that its prompt has begun.

    columns: of the reward's call, among them the policy's fact `thinking_prefix`, if it states one.
    """
    pairs = zip(thinking_prefixes(columns, len(completions)), completions, strict=True)
    return [prefix + content(completion) for prefix, completion in pairs]


def thinking_prefixes(columns: Mapping[str, Any], count: int) -> Sequence[str]:
    """Returns the policy's fact `thinking_prefix`; empty strings if it states none."""
    prefixes = columns.get("thinking_prefix")
    return [""] * count if prefixes is None else prefixes


def outside_thinking(text: str) -> str:
    """Returns the text outside `<think>...</think>`, or another model's signs of thinking.

    `</think>` without `<think>`: the thinking began in the prompt. `<think>` without `</think>`: it
    lasts to the end. A `<think>` inside thinking is ignored; thinking ends at its last `</think>`.
    """
    for opening, closing in _THINKING:
        first, *later = text.split(opening)
        ended = [first, *(part for part in later if closing in part)]
        text = "\n".join(part.rpartition(closing)[2] for part in ended)
    return text


def tagged(text: str, tag: str) -> str | None:
    """Returns the stripped content of the last `<tag>...</tag>` outside thinking, or None.

    Pairs are matched from the left, as in reasoning-gym's `extract_answer`: an opening tag lasts up
    to the next closing tag, and may contain other opening tags.
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
    """Returns the text of a prompt; of messages one line each; "" for anything else."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence):
        return ""
    parts = [part.get("content") for part in prompt if isinstance(part, Mapping)]
    return "\n".join(part for part in parts if isinstance(part, str))
