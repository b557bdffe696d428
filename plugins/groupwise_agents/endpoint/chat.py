"""Chat: requests and answers in the form of OpenAI's chat completions."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.environment import Reply
from groupwise_agents.content import NOT_SELF_CONTAINED, is_self_contained

READ = frozenset({"model", "messages", "tools", "stream", "max_tokens", "max_completion_tokens"})
FIXED: Mapping[str, Sequence[Any]] = {
    "n": (1,),
    "stop": ("", []),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tool_choice": ("auto", "none"),
    "functions": ([],),
}
"""Parameters that ask for another kind of answer, with the values that ask for none."""
NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
"""Tokens are not counted here, and clients may read the numbers without a check."""
WITHOUT_EFFECT = frozenset(
    {
        *("metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier"),
        *("service_tier", "store", "stream_options", "user"),
    }
)


class Refusal(Exception):  # noqa: N818
    """A request that is not answered: HTTP status, a code for programs, a sentence for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code

    @property
    def body(self) -> Mapping[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the endpoint reads of a request.

    limit: the most tokens of the answer, None for the policy's own limit; ignored: the names of
    parameters that the run does not follow: it samples as its policy says.
    """

    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    limit: int | None
    ignored: Sequence[str]

    @classmethod
    def of(cls, body: Any) -> "Request":
        """Raises Refusal for what is no request, or asks for another kind of answer."""
        if not isinstance(body, Mapping):
            raise invalid("the body must be a JSON object")
        sent = {name: value for name, value in body.items() if value is not None}
        for name, plain in FIXED.items():
            if name in sent and sent[name] not in plain:
                raise Refusal(
                    400,
                    "unsupported_parameter",
                    f"{name}: {sent[name]!r} is not supported: a run answers with one completion "
                    f"at a time, as its policy samples it; leave `{name}` out",
                )
        model, messages, tools = sent.get("model"), sent.get("messages"), sent.get("tools", [])
        if not isinstance(model, str):
            raise invalid("`model` must be a string")
        if not (messages and _is_list_of_objects(messages)):
            raise invalid("`messages` must be a list of messages, with at least one")
        if not all(isinstance(message.get("role"), str) for message in messages):
            raise invalid("each of `messages` must have a `role`")
        if not all(is_self_contained(message.get("content")) for message in messages):
            raise invalid(NOT_SELF_CONTAINED)
        if not _is_list_of_objects(tools):
            raise invalid("`tools` must be a list of functions' JSON schemas")
        limit = sent.get("max_completion_tokens", sent.get("max_tokens"))
        if limit is not None and (type(limit) is not int or limit < 1):
            raise invalid(f"max_tokens: {limit!r} is not a positive integer")
        return cls(
            model=model,
            messages=messages,
            tools=[] if sent.get("tool_choice") == "none" else tools,
            limit=limit,
            ignored=sorted(sent.keys() - READ - FIXED.keys() - WITHOUT_EFFECT),
        )


def answer(number: int, reply: Reply, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body of an answer; number: of the request; message: as the agent receives it."""
    reason = "tool_calls" if "tool_calls" in message else "stop"
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "length" if reply.truncated else reason,
    }
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": reply.label,
        "choices": [choice],
        "usage": NO_USAGE,
    }


def streamed(answered: Mapping[str, Any]) -> str:
    """An answer as server-sent events, for clients that ask for a stream: all of it at once."""
    (choice,) = answered["choices"]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(delta["tool_calls"])]
    common = {**answered, "object": "chat.completion.chunk"}
    parts = [
        {"index": 0, "delta": delta, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]},
    ]
    events = [json.dumps({**common, "choices": [part]}) for part in parts]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])


def models(labels: Sequence[str]) -> Mapping[str, Any]:
    """The body of the list of models."""
    own = [{"id": n, "object": "model", "created": 0, "owned_by": "groupwise"} for n in labels]
    return {"object": "list", "data": own}


def invalid(message: str) -> Refusal:
    return Refusal(400, "invalid_request", message)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in value)
