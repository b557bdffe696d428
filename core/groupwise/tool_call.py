"""ToolCall: a call of a tool as a model wrote it, and the chat messages that have calls."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from groupwise.kit import foreign_json

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""A NUL as JSON writes it, but not a backslash before u0000."""
PARTS = frozenset({"name", "arguments", "id", "type", "index"})
"""The keys of a call."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool, as a model wrote it.

    id: "" where the model's format has none. fault: why it cannot be made, in words for the model
    (its JSON is malformed, it names no tool); None if it can. Arguments with a NUL character or
    half of a surrogate pair, both of which JSON can name, are a fault, and dropped: programs,
    servers and tokenizers refuse them.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    id: str = ""
    fault: str | None = None

    def __post_init__(self) -> None:
        if self.fault is None and (reason := _unreadable(dict(self.arguments))):
            object.__setattr__(self, "fault", f"an argument {reason}")
            object.__setattr__(self, "arguments", {})

    @classmethod
    def of(cls, call: Any) -> "ToolCall":
        """From the form that chat messages have, or that of its `function` alone; arguments may be
        JSON. It has a fault if this is neither, or has anything else in place of arguments."""
        call = call if isinstance(call, Mapping) else {}
        function = call.get("function", call)
        function = function if isinstance(function, Mapping) else {}
        name, arguments, id_ = function.get("name"), function.get("arguments"), call.get("id") or ""
        if reason := _unreadable([name, id_ := str(id_)]):
            return cls("", fault=f"the call's name or id {reason}")
        if not (isinstance(name, str) and name):
            return cls("", id=id_, fault="the call names no function")
        if isinstance(arguments, str):
            try:
                arguments = foreign_json.read(arguments)
            except ValueError as error:
                fault = f"the arguments are not valid JSON: {error}"
                return cls(name, id=id_, fault=fault)
        if problem := _fault(function, arguments):
            return cls(name, id=id_, fault=problem)
        return cls(name, arguments or {}, id_)

    def __str__(self) -> str:
        """As name(argument=value, ...), for people; values are JSON."""
        values = (
            f"{name}={json.dumps(value, ensure_ascii=False, default=str)}"
            for name, value in self.arguments.items()
        )
        return f"{self.name}({', '.join(values)})"

    @property
    def chat(self) -> dict[str, Any]:
        """As in the `tool_calls` of a chat message."""
        function = {"name": self.name, "arguments": dict(self.arguments)}
        return {**({"id": self.id} if self.id else {}), "type": "function", "function": function}


def _fault(function: Mapping[str, Any], arguments: Any) -> str | None:
    """Why a function cannot be called with these arguments, None if it can."""
    others = [key for key, own in function.items() if key not in PARTS and own is not None]
    if arguments is None and others:
        shown = ", ".join(map(repr, others))
        return f"the call has {shown} and no 'arguments', which holds what the tool is given"
    if not isinstance(arguments, Mapping | None):
        return "the arguments are not a JSON object"
    return None


def _unreadable(value: Any) -> str | None:
    """Why tokenizers, templates or programs refuse a value, None if they take it."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
        text.encode()
    except UnicodeEncodeError:
        return "has an incomplete character"
    except (ValueError, RecursionError):
        return "is nested too deeply"
    return "has a NUL character" if _NUL.search(text) else None


def assistant_message(content: str, calls: Sequence[ToolCall] = ()) -> dict[str, Any]:
    """The assistant's chat message, with those of the calls that have no fault."""
    made = [call.chat for call in calls if call.fault is None]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}


def text_of(completion: Any) -> str | None:
    """A completion, or a prompt, as text: of chat messages the content of the last, "" where that
    only calls tools; None of anything else."""
    match completion:
        case str(text) | [*_, {"content": str(text)}]:
            return text
        case [*_, {"tool_calls": _}]:
            return ""
    return None


def calls_of(completion: Any) -> tuple[ToolCall, ...]:
    """The calls of tools in the last message of a completion; () of anything but chat messages."""
    match completion:
        case [*_, {"tool_calls": [*calls]}]:
            return tuple(
                call if isinstance(call, ToolCall) else ToolCall.of(call) for call in calls
            )
    return ()
