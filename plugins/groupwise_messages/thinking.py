"""Thinking: what opens and closes it, in chat templates and in what models write."""

import re

TAGS = {"<think>": "</think>", "[THINK]": "[/THINK]"}
"""What opens thinking, and what closes it; the latter is Magistral's."""
OPENING = re.compile("|".join(map(re.escape, TAGS)))


def after_thinking(text: str) -> str:
    """What follows the thinking that a text closes last; all of it if it closes none."""
    ends = [text.rfind(tag) + len(tag) for tag in TAGS.values() if tag in text]
    return text[max(ends, default=0) :]
