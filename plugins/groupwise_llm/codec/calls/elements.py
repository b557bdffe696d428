"""Elements: calls whose arguments are elements of XML, as Qwen3-Coder and GLM write them."""

import re

from groupwise.tool_call import ToolCall
from groupwise_llm.codec.calls.arguments import typed
from groupwise_llm.codec.calls.format import Scanned, Tools, Written

END = "</tool_call>"


class Elements(Scanned):
    """`<tool_call>`, the name, an element for each argument, `</tool_call>`.

    name: matches the name after the mark, and all before the arguments; argument: one of these, its
    name and its text; form: for the model.
    """

    opening = re.compile("<tool_call>")

    def __init__(self, name: str, argument: str, closing: str, form: str) -> None:
        self.name, self.argument = re.compile(name), re.compile(argument, re.DOTALL)
        self.closing, self.form = re.compile(rf"\s*{closing}{END}"), form

    def read(self, text: str, opened: re.Match[str], tools: Tools) -> Written:
        header = self.name.match(text, opened.end())
        place = opened.end() if header is None else header.end()
        pairs = []
        while header is not None and (found := self.argument.match(text, place)):
            pairs.append((found[1].strip(), found[2]))
            place = found.end()
        closed = self.closing.match(text, place)
        if header is None or closed is None:
            fault = f"the call is malformed; write {self.form}"
            name = "" if header is None else header[1].strip()
            return Written(self._after(text, place), (ToolCall(name, fault=fault),))
        name = header[1].strip()
        call = ToolCall.of({"name": name, "arguments": typed(name, pairs, tools)})
        return Written(closed.end(), (call,))

    def _after(self, text: str, start: int) -> int:
        """Where a malformed call ends: with its mark, else where the next one begins."""
        stop = re.compile(f"{END}|(?=<tool_call>)").search(text, start)
        return len(text) if stop is None else stop.end()


QWEN3_CODER = Elements(
    name=r"\s*<function=([^>\n]+)>",
    argument=r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|</function>))",
    closing=r"</function>\s*",
    form="<tool_call>\n<function=NAME>\n<parameter=ARGUMENT>\nVALUE\n</parameter>\n</function>\n"
    "</tool_call>",
)
"""Qwen3-Coder, Qwen3.5 and later, Nemotron 3."""
GLM = Elements(
    name=r"\s*([^<\s][^<\n]*)",
    argument=r"\s*<arg_key>([^<]+)</arg_key>\s*<arg_value>(.*?)</arg_value>",
    closing="",
    form="<tool_call>NAME\n<arg_key>ARGUMENT</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>",
)
"""GLM 4.5 and later."""
