"""History: what an agent was answered, and where its later requests send that back."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from groupwise.environment import Reply
from groupwise.kit import foreign_json
from groupwise_agents.endpoint.refusal import Refusal

Message = Mapping[str, Any]


@dataclass(frozen=True)
class _Turn:
    """A reply. context: the messages before it, as players receive them; content: its text and
    calls as the agent received them, to compare; message: the reply's own."""

    context: Sequence[Message]
    content: tuple[Any, ...]
    message: Message


class History:
    """The replies of an episode, by the messages before each.

    A request that sends back a reply after the messages that it answered goes on from it: the
    message from JSON is replaced by the reply's own, so that a player goes on in the same tokens.
    Any other message is the agent's own, and part of a prompt.

    keeps_drift: whether a reply that comes back changed begins a new rollout, in which it is part
    of the prompt; else the request is refused.
    """

    def __init__(self, *, keeps_drift: bool) -> None:
        self.keeps_drift, self.drifts = keeps_drift, 0
        self._turns: list[_Turn] = []

    def context(self, messages: Sequence[Message]) -> list[Message]:
        """The messages of a request as players receive them. Raises Refusal where a reply was
        changed; `drifts` counts these requests."""
        context: list[Message] = []
        names: dict[str, str] = {}
        has_drifted = False
        for sent in messages:
            message = _without_nulls(sent)
            if message["role"] == "assistant":
                names |= {call["id"]: call["function"]["name"] for call in _calls(message)}
                content = _content(message)
                turns = [turn for turn in self._turns if turn.context == context]
                same = next((turn for turn in turns if turn.content == content), None)
                if same is not None:
                    message = same.message
                elif turns and not has_drifted:
                    self._drift(turns[-1].content, content)
                    has_drifted = True
            elif message["role"] == "tool" and message.get("tool_call_id") in names:
                message = {"name": names[message["tool_call_id"]], **message}
            context.append(message)
        return context

    def record(self, context: Sequence[Message], reply: Reply) -> Message:
        """Add the reply to a context; returns its message as the agent receives it."""
        message = reply.message
        sent: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
        if calls := message.get("tool_calls"):
            number = len(self._turns)
            sent["content"] = sent["content"] or None
            sent["tool_calls"] = [_sent_call(call, number, n) for n, call in enumerate(calls)]
        self._turns.append(_Turn(context, _content(_without_nulls(sent)), message))
        return sent

    def _drift(self, answered: tuple[Any, ...], returned: tuple[Any, ...]) -> None:
        self.drifts += 1
        if not self.keeps_drift:
            raise Refusal(
                400,
                "changed_reply",
                f"an assistant's message was changed after the endpoint answered it: "
                f"{_difference(answered, returned)}. Send it back as it came, or set `environment: "
                f"{{drift: new_rollout}}`, which makes it part of the prompt of a new rollout",
            )


def _without_nulls(message: Message) -> Message:
    """A message without the fields that are null, as clients add them; calls' arguments are
    objects, as chat templates take them."""
    own = {name: value for name, value in message.items() if value is not None}
    own.setdefault("content", "")
    if "tool_calls" in own:
        calls = own.pop("tool_calls")
        if calls:
            own["tool_calls"] = [_read_call(call) for call in calls]
    return own


def _read_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """A call with its arguments as an object, if they are JSON of one."""
    function = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError):  # a string that is not JSON stays one
            arguments = foreign_json.read(arguments or "{}")
    own = {"name": function["name"], "arguments": arguments or {}}
    return {"id": call.get("id") or "", "type": "function", "function": own}


def _sent_call(call: Mapping[str, Any], turn: int, number: int) -> Mapping[str, Any]:
    """A call as the agent receives it. Where the model's format has no ids it gets one of nine
    letters and digits, which every chat template takes."""
    function = call["function"]
    arguments = json.dumps(function["arguments"], default=str)
    return {
        "id": call.get("id") or f"call{turn:03d}{number:02d}",
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _calls(message: Message) -> Sequence[Mapping[str, Any]]:
    return message.get("tool_calls", ())


def _content(message: Message) -> tuple[Any, ...]:
    """The text of an assistant's message and its calls, without what clients add to these."""
    text = message["content"]
    if isinstance(text, list):
        text = "".join(part.get("text") or "" for part in text)
    return text, [(call["id"], call["function"]) for call in _calls(message)]


def _difference(answered: tuple[Any, ...], returned: tuple[Any, ...]) -> str:
    """The first difference, in words."""
    names = "its text was", "its calls were"
    name, one, other = next(
        each for each in zip(names, answered, returned, strict=True) if each[1] != each[2]
    )
    return f"{name} {one!r:.200}, and is now {other!r:.200}"
