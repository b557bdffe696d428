"""Toolbox: the tools of an episode, which answer the calls of a model."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from groupwise.environment import EpisodeEnded
from groupwise.kit import terminal
from groupwise.kit.copies import copied, kept
from groupwise.kit.errors import UserError
from groupwise.tool_call import ToolCall
from groupwise_agents.content import Content, content_of
from groupwise_agents.tool import Tool, ToolError, Unavailable


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers to the calls of a turn.

    messages: chat messages of the role `tool`, in the order of the calls; errors: how many calls
    have no answer of their tool: malformed, of an unknown tool, with wrong arguments, or the tool
    raised or was too late; seconds: until the last was answered; is_final: whether a tool ended the
    episode, by raising `EpisodeEnded`.
    """

    messages: Sequence[Mapping[str, Any]]
    errors: int
    seconds: float
    is_final: bool


@dataclass(frozen=True)
class _Answer:
    content: Content
    is_error: bool = False
    is_final: bool = False

    @classmethod
    def error(cls, problem: str) -> "_Answer":
        return cls(f"error: {problem}", is_error=True)


class Toolbox:
    """Tools by their names, whose calls in a turn are made at once.

    Tools that have a state in common belong into an `OrderedToolbox`, one for each episode.

    tools: functions with type hints and docstrings, or Tools; deadline: seconds for each call.
    Raises UserError for a function that is not a tool, and for two tools of one name.
    """

    def __init__(
        self, tools: Sequence[Tool | Callable[..., Any]], *, deadline: float = 30.0
    ) -> None:
        self.tools: dict[str, Tool] = {}
        self.deadline = deadline
        for tool in map(Tool.of, tools):
            if tool.name in self.tools:
                raise UserError(
                    f"two tools are named {tool.name!r}, and a call says no more than the name; "
                    f"rename one of them"
                )
            self.tools[tool.name] = tool

    @cached_property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        """For `player(context, tools=...)`."""
        return [tool.schema for tool in self.tools.values()]

    async def answers(self, calls: Sequence[ToolCall]) -> Answers:
        """Make all calls of a turn at once. Raises Unavailable if one of the tools does."""
        started = time.monotonic()
        tasks = [asyncio.create_task(self._answer(call)) for call in calls]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return Answers(
            messages=[_message(*pair) for pair in zip(calls, answers, strict=True)],
            errors=sum(each.is_error for each in answers),
            seconds=time.monotonic() - started,
            is_final=any(each.is_final for each in answers),
        )

    async def _answer(self, call: ToolCall) -> _Answer:
        if call.fault is not None:
            return _Answer.error(call.fault)
        tool = self.tools.get(call.name)
        if tool is None:
            known = ", ".join(self.tools)
            return _Answer.error(f"there is no tool {call.name!r}; the tools are {known}")
        task = asyncio.create_task(_called(tool, call.arguments))
        try:
            await asyncio.wait({task}, timeout=self.deadline)
            if task.done():
                return task.result()
        finally:
            task.cancel()  # it may ignore this, so nothing waits for it
        _warn_once(
            f"tool {tool.name!r} did not answer within {self.deadline:g} s; the model reads that, "
            f"and the call is abandoned"
        )
        return _Answer.error(f"{tool.name} did not answer within {self.deadline:g} s")


async def _called(tool: Tool, arguments: Mapping[str, Any]) -> _Answer:
    """The answer of a tool. Raises Unavailable, and nothing else."""
    try:
        # Its own, since it may keep what it receives and returns, and change that later.
        return _Answer(kept(content_of(await tool(**copied(arguments)))))
    except (Unavailable, asyncio.CancelledError):
        raise
    except ToolError as error:
        return _Answer.error(f"{tool.name}: {error}")
    except EpisodeEnded as error:
        return _Answer(str(error), is_final=True)
    except BaseException as error:  # also the SystemExit of a tool, which would end the event loop
        return _Answer.error(f"{type(error).__name__}: {error}")


def _message(call: ToolCall, answer: _Answer) -> Mapping[str, Any]:
    own = {"tool_call_id": call.id} if call.id else {}
    return {"role": "tool", "name": call.name, **own, "content": answer.content}


@cache
def _warn_once(text: str) -> None:
    terminal.say(f"warning: {text}")
