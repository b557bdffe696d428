"""EpisodeTask: the asyncio task of an episode, those that it starts, and the time that it has."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from groupwise.episodes import child_tasks


class EpisodeTask:
    """How far the coroutine of an episode is.

    task: in which it is played, None before it begins; tasks: this one and those that it has
    started, while they run; waiting: how many requests it waits for; was_called: whether a player
    was.
    """

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.waiting = 0
        self.was_called = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, coroutine: Coroutine[Any, Any, None], context: Context) -> None:
        """Begin the coroutine, with context variables of its own, which are now as in `context`."""
        own = context.run(child_tasks.owning, self.tasks)
        self.task = asyncio.create_task(coroutine, context=own)

    def start_time(self, seconds: float, late: Callable[[], None]) -> None:
        """Call `late` after these seconds, unless the time is stopped before."""
        self._timer = asyncio.get_running_loop().call_later(seconds, late)

    def stop_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def cancel(self) -> None:
        """Cancel all that runs; the coroutine may ignore that."""
        self.stop_time()
        for task in [*self.tasks]:
            task.cancel()
