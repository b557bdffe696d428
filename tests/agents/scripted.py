"""A player without a model: it says what a test wrote down."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from groupwise.environment import Reply
from groupwise.tool_call import ToolCall


def say(text="", **calls):
    """A reply that calls tools, in order, each by its name and arguments."""
    made = tuple(ToolCall(name, arguments) for name, arguments in calls.items())
    return Reply(text, "policy", calls=made)


@dataclass
class Player:
    """replies: in order, the last one again and again; contexts: with which it was called."""

    replies: list[Reply]
    contexts: list[Any] = field(default_factory=list)
    tools: Any = None

    async def __call__(self, context, *, limit=None, tools=None):
        self.contexts.append(context if isinstance(context, str) else [*context])
        self.tools = tools
        return self.replies[min(len(self.contexts), len(self.replies)) - 1]

    async def shortened(self, text, most):
        return text


def play(environment, row, *replies, **seed):
    """One episode: what `play` returned, and its player; seed: for an environment that takes it."""
    player = Player([*replies])
    return asyncio.run(environment.play(row, {"policy": player}, **seed)), player
