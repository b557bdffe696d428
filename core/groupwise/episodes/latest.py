"""Latest: the call that the next one of a task of an episode follows."""

import asyncio
from contextvars import ContextVar
from typing import Any

from groupwise.record import Call, Episode

_LATEST: ContextVar[tuple[Call | None, "asyncio.Task[Any] | None"]] = ContextVar("latest")
"""The last call of a task of an episode, or of the task that started it, and which one made it."""


def note(call: Call | None) -> None:
    """Note the last call of this task."""
    _LATEST.set((call, asyncio.current_task()))


def call(episode: Episode) -> Call | None:
    """The call that the next one of this task follows, however long other tasks take: its own last
    one or, if tasks that it waited for went on from there, the last of theirs."""
    latest, task = _LATEST.get((None, None))
    while task is asyncio.current_task() and (followers := episode.followers(latest)):
        latest = followers[-1]
    return latest
