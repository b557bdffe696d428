"""ChildTasks: the tasks that an episode starts, which end with it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from typing import Any

GRACE = 0.2
"""Seconds that tasks have to end by themselves after their episode, and again once cancelled."""

Task = asyncio.Task[Any]
_own: ContextVar[set[Task] | None] = ContextVar("own", default=None)
"""The tasks of the episode whose code runs."""


def started(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> Task:
    """A loop's task factory: a task belongs to the episode whose code started it."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    if (own := (options.get("context") or copy_context()).get(_own)) is not None:
        own.add(task)
        task.add_done_callback(own.discard)
    return task


def owning(tasks: set[Task]) -> Context:
    """A context whose tasks are added to these until they end."""
    context = copy_context()
    context.run(_own.set, tasks)
    return context


async def end(tasks: Iterable[Task], place: Callable[[Any], str]) -> list[str]:
    """Cancel the tasks that do not end by themselves; these in words, such as "poll (line 12 of
    calculator.py)".

    place: where a coroutine waits.
    """
    left = await _wait([*tasks])
    coroutines = [task.get_coro() for task in left]
    names = [f"{getattr(own, '__qualname__', own)}{place(own)}" for own in coroutines]
    for task in left:
        task.cancel()
    await _wait(left)
    return names


async def _wait(tasks: list[Task]) -> list[Task]:
    """Those that do not end within `GRACE`."""
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE)
    return [task for task in tasks if not task.done()]
