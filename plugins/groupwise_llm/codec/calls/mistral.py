"""Mistral: calls after the token `[TOOL_CALLS]`."""

import re
from dataclasses import replace

from groupwise.tool_call import ToolCall
from groupwise_llm.codec.calls.format import Scanned, Tools, Written, json_at, malformed

LIST = '[TOOL_CALLS][{"name": ..., "arguments": {...}}]'
NAMED = "[TOOL_CALLS]NAME[ARGS]{...}"
HEADER = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*([^\s\[\]{}]*)\s*)?\[ARGS\]")


class Mistral(Scanned):
    """A list of calls in JSON, or `[TOOL_CALLS]name[ARGS]{...}` for each, by mistral-common's
    tokenizers up to version 7 and from version 11 (which also has `[CALL_ID]`)."""

    opening = re.compile(re.escape("[TOOL_CALLS]"))

    def read(self, text: str, opened: re.Match[str], tools: Tools) -> Written:
        start = opened.end()
        header = HEADER.match(text, start)
        try:
            value, end = json_at(text, start if header is None else header.end())
        except ValueError as error:
            call = malformed(error, LIST if header is None else NAMED)
            call = call if header is None else replace(call, name=header[1])
            following = self.opening.search(text, start)
            return Written(len(text) if following is None else following.start(), (call,))
        if header is not None:
            call = ToolCall.of({"name": header[1], "arguments": value, "id": header[2]})
            return Written(end, (call,))
        values = value if isinstance(value, list) else [value]
        return Written(end, tuple(map(ToolCall.of, values)) or (ToolCall.of(None),))
