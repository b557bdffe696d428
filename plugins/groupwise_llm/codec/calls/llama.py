"""Llama: a turn that is the JSON of a call, or one that begins with the tag for programs."""

import re
from collections.abc import Mapping
from typing import Any

from groupwise.tool_call import ToolCall
from groupwise_llm.codec.calls.format import Scanned, Tools, Written, json_at, malformed

TAG = "<|python_tag|>"
FORM = '{"name": ..., "parameters": {...}}'
LIKE_A_CALL = re.compile(r'\s*\{\s*"(?:name|type|function)"\s*:')
BETWEEN = re.compile(r"[\s;,]*(?=\{)")
BUILT_IN = re.compile(r"\s*(\w+)\.call\((.*)\)\s*", re.DOTALL)
ARGUMENT = re.compile(r'(\w+)="(.*?)"(?=\s*(?:,\s*\w+=|$))', re.DOTALL)


class Llama(Scanned):
    """Llama 3.1 to 3.3, by Meta's description of their prompts (https://www.llama.com/docs).

    `{"name": ..., "parameters": {...}}` at the beginning of the answer, with or without the tag;
    several follow each other. After the tag also `name.call(argument="...")` for a built-in tool,
    and anything else as a program for `code_interpreter`. JSON that is none of it is an answer.
    """

    opening = re.compile(rf"{re.escape(TAG)}|(?:\A|(?<=</think>))\s*(?=\{{)")

    def read(self, text: str, opened: re.Match[str], tools: Tools) -> Written:
        tagged = opened[0] == TAG
        calls, end = self._objects(text, opened.end())
        if calls or not tagged:
            return Written(end, calls)
        program = text[opened.end() :].strip()
        if built_in := BUILT_IN.fullmatch(program):
            call = ToolCall(built_in[1], dict(ARGUMENT.findall(built_in[2])))
        elif program:
            call = ToolCall("code_interpreter", {"code": program})
        else:
            call = ToolCall("", fault=f"nothing follows {TAG}; write {FORM}")
        return Written(len(text), (call,))

    def _objects(self, text: str, start: int) -> tuple[tuple[ToolCall, ...], int]:
        """The calls that follow each other from here, and where they end."""
        calls = list[ToolCall]()
        end = start
        while (begun := BETWEEN.match(text, end)) is not None:
            try:
                value, after = json_at(text, begun.end())
            except ValueError as error:
                if LIKE_A_CALL.match(text, begun.end()):
                    return (*calls, malformed(error, FORM)), len(text)
                break
            if isinstance(value, dict) and isinstance(value.get("function"), dict):
                value = value["function"]
            if not _is_call(value):
                break
            calls.append(_call(value))
            end = after
        return tuple(calls), end


def _is_call(function: Any) -> bool:
    match function:
        case {"name": str(), "parameters": _} | {"name": str(), "arguments": _}:
            return True
    return False


def _call(function: Mapping[str, Any]) -> ToolCall:
    arguments = function.get("parameters", function.get("arguments"))
    return ToolCall.of({"name": function["name"], "arguments": arguments})
