"""Chat: answers in the form of OpenAI's chat completions."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.environment import Reply

NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
"""Tokens are not counted here, and clients may read the numbers without a check."""


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
