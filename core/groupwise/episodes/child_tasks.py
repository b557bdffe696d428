"""ChildTasks: the tasks that episodes start, and those that they leave running."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import Any

GRACE = 0.2
"""Seconds that tasks have to end by themselves after a batch."""

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


async def left(episodes: Sequence[Collection[Task]], place: Callable[[Any], str]) -> list[str]:
    """Kinds of tasks that half of the episodes or more have left running, such as "poll (line 12 of
    calculator.py)".

    They go on until the run ends: what each episode forgot looks the same as what it put into a
    pool that all share. Kinds of fewer episodes are more likely shared, as a client's are.

    episodes: the tasks of each; place: where a coroutine waits.
    """
    tasks = [task for own in episodes for task in own]
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE)
    kinds = [{_kind(task, place) for task in own if not task.done()} for own in episodes]
    counts = Counter(kind for own in kinds for kind in own)
    return [kind for kind, count in counts.items() if count >= max(2, len(episodes) / 2)]


def _kind(task: Task, place: Callable[[Any], str]) -> str:
    coroutine = task.get_coro()
    return f"{getattr(coroutine, '__qualname__', coroutine)}{place(coroutine)}"
