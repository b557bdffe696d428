"""Tags: calls between two marks, as JSON (Hermes, Qwen) or as the text of one argument."""

import re
from collections.abc import Sequence

from groupwise.tool_call import ToolCall
from groupwise_llm.codec.calls.format import Scanned, Tools, Written, json_at, malformed


class Tags(Scanned):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, or with other marks.

    call: the names of a tool and of its argument, which is then all between the marks.
    """

    def __init__(
        self,
        begin: str = "<tool_call>",
        end: str = "</tool_call>",
        call: tuple[str, str] | None = None,
    ) -> None:
        self.begin, self.end, self.call = begin, end, call
        self.opening = re.compile(re.escape(begin))
        self.ending = re.compile(f"{re.escape(end)}|(?={re.escape(begin)})")

    def read(self, text: str, opened: re.Match[str], tools: Tools) -> Written:
        if self.call is not None:
            return self._argument(text, opened.end(), *self.call)
        form = f'{self.begin}{{"name": ..., "arguments": {{...}}}}{self.end}'
        try:
            value, end = json_at(text, opened.end())
        except ValueError as error:
            return Written(self._after(text, opened.end()), (malformed(error, form),))
        rest = text[end:].lstrip()
        if not rest.startswith(self.end):
            fault = f"the call is not closed by {self.end} after its JSON; write {form}"
            return Written(self._after(text, end), (ToolCall("", fault=fault),))
        values: Sequence[object] = value if isinstance(value, list) else [value]
        calls = tuple(map(ToolCall.of, values)) or (ToolCall.of(None),)
        return Written(len(text) - len(rest) + len(self.end), calls)

    def _argument(self, text: str, start: int, name: str, argument: str) -> Written:
        stop = text.find(self.end, start)
        if stop < 0:
            fault = f"the call is not closed: write {self.begin}...{self.end}"
            return Written(self._after(text, start), (ToolCall(name, fault=fault),))
        call = ToolCall(name, {argument: text[start:stop].strip()})
        return Written(stop + len(self.end), (call,))

    def _after(self, text: str, start: int) -> int:
        """Where a malformed call ends: with the mark, else where the next one begins."""
        stop = self.ending.search(text, start)
        return len(text) if stop is None else stop.end()
