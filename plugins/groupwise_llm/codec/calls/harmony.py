"""Harmony: the messages of gpt-oss, of which those to a tool are its calls."""

import re
from collections.abc import Sequence
from dataclasses import replace

from groupwise.tool_call import ToolCall
from groupwise_llm.codec.calls.format import Scanned, Tools, Written, json_at, malformed

FORM = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>"
HEADER = (
    r"(?:<\|start\|>assistant)?(?P<role>[^<]{0,99})<\|channel\|>(?P<channel>[^<]{0,99})"
    r"(?:<\|constrain\|>[^<]*)?<\|message\|>"
)
END = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|start\|>)")
RECIPIENT = re.compile(r"\bto=(?:functions\.)?(\S+)")


class Harmony(Scanned):
    """By OpenAI's description of the format (https://cookbook.openai.com/articles/openai-harmony):
    a message to a recipient, before or in its channel, calls that tool.

    The content beside calls is what the template takes there: the texts of the other messages.
    """

    opening = re.compile(HEADER)

    def read(self, text: str, opened: re.Match[str], tools: Tools) -> Written:
        stop = END.search(text, opened.end())
        body_end, end = (len(text), len(text)) if stop is None else stop.span()
        to = RECIPIENT.search(opened["role"]) or RECIPIENT.search(opened["channel"])
        if to is None:
            return Written(end)
        body = text[opened.end() : body_end]
        try:
            value, after = json_at(body, 0)
        except ValueError as error:
            return Written(end, (replace(malformed(error, FORM), name=to[1]),))
        if body[after:].strip():
            call = ToolCall(to[1], fault=f"text follows the call's JSON; write {FORM}")
        else:
            call = ToolCall.of({"name": to[1], "arguments": value})
        return Written(end, (call,))

    def joined(self, parts: Sequence[str]) -> str:
        texts = END.sub("\n", "\n".join(self.opening.sub("", part) for part in parts))
        return super().joined([texts.removesuffix("<|start|>assistant").strip()])
