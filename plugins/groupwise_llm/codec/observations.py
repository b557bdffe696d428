"""Observations: which tokens an environment said, and not the template or the model."""

import re
from collections.abc import Sequence
from typing import Any

from groupwise_llm.codec.characters import ends
from groupwise_llm.codec.completions import content
from groupwise_llm.codec.contexts import Context, Message, Segment, Turn, is_reply
from groupwise_llm.codec.suffixes import Suffixes


class Observations:
    """Finds contents of messages by what the template puts around placeholders in their place."""

    def __init__(self, suffixes: Suffixes) -> None:
        self.suffixes, self.tokenizer = suffixes, suffixes.tokenizer

    def of(self, context: Context) -> list[bool]:
        """For each of `completion_ids` whether it comes from the environment: from the contents of
        its messages, not from what the template puts around them, unless the template changes a
        content; or from a bare text."""
        observed, drawn, number = list[bool](), Segment(ids=()), 0
        for segment in context.segments:
            if is_reply(segment):
                turn = context.completion[number]
                number += 1 + len(segment.messages)
                observed += self._in_replies(segment, drawn, turn, context.tools)
            else:
                observed += [not isinstance(segment, Turn)] * len(segment.ids)
            drawn = segment
        return observed

    def _in_replies(
        self, segment: Segment, drawn: Segment, turn: Message, tools: Any
    ) -> list[bool]:
        """drawn: the segment before the replies; turn: the assistant's message before them."""
        text = self.tokenizer.decode(segment.ids)
        calls = turn.get("tool_calls", ())
        around = self.suffixes.around(drawn.ids, segment.messages, tools, calls)
        replies = self.suffixes.template.escaped([*segment.messages])
        contents = [content(message).strip() for message in replies]
        stretches = _between(text, around, contents)
        if stretches is None:
            return [True] * len(segment.ids)
        last = ends(self.tokenizer.decode, segment.ids, text)
        spans = zip([0, *last], last, strict=False)
        return [any(a < stop and start < b for start, stop in stretches) for a, b in spans]


def _between(
    text: str, around: Sequence[str], contents: Sequence[str]
) -> list[tuple[int, int]] | None:
    """Where a text has these contents, with spaces or none beside them, between the others; None if
    it is not made of them."""
    if len(around) != len(contents) + 1:
        return None
    first, *others = map(re.escape, around)
    pairs = zip(map(re.escape, contents), others, strict=True)
    pattern = first + "".join(rf"\s*({own})\s*{after}" for own, after in pairs)
    match = re.fullmatch(pattern, text)
    return None if match is None else [match.span(n + 1) for n in range(len(contents))]
