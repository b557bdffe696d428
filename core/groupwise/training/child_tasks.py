"""ChildTasks: the tasks that episodes start, and those that they leave running."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import Any

GRACE = 0.2
"""Seconds that tasks have to end by themselves after a batch, and again once cancelled."""

Task = asyncio.Task[Any]
_own: ContextVar[set[Task] | None] = ContextVar("own", default=None)
"""The tasks of the episode whose code runs."""


def started(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Task:
    """A loop's task factory: a task belongs to the episode whose code started it."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    context = options.get("context")
    if context is None:  # an empty one, of no episode, is false as well
        context = copy_context()
    if (own := context.get(_own)) is not None:
        own.add(task)
        task.add_done_callback(own.discard)
    return task


def owning(tasks: set[Task]) -> Context:
    """A context whose tasks are added to these until they end."""
    context = copy_context()
    context.run(_own.set, tasks)
    return context


async def end_leaks(episodes: Sequence[Collection[Task]], place: Callable[[Any], str]) -> list[str]:
    """Cancel tasks of one kind that half of the episodes or more have left running; the kinds, such
    as "poll (line 12 of calculator.py)".

    Others may be what episodes share: a client's or a server's, started by the first that needs it.

    episodes: the tasks of each; place: where a coroutine waits.
    """
    await _wait([task for own in episodes for task in own])
    kinds: dict[str, list[Task]] = {}
    counts = Counter[str]()
    for own in episodes:
        left = [(_kind(task, place), task) for task in own if not task.done()]
        counts.update({kind for kind, _ in left})
        for kind, task in left:
            kinds.setdefault(kind, []).append(task)
    leaks = [kind for kind, count in counts.items() if count >= max(2, len(episodes) / 2)]
    cancelled = [task for kind in leaks for task in kinds[kind]]
    for task in cancelled:
        task.cancel()
    await _wait(cancelled)
    return leaks


def _kind(task: Task, place: Callable[[Any], str]) -> str:
    coroutine = task.get_coro()
    return f"{getattr(coroutine, '__qualname__', coroutine)}{place(coroutine)}"


async def _wait(tasks: Collection[Task]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE)
