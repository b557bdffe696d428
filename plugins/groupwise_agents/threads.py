"""Threads: sync functions beside the event loop, which can hold up neither a run nor its exit."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], name: str) -> T:
    """Call a function in a daemon thread of its own, and wait for what it returns or raises.

    A call that is cancelled goes on, and its result is dropped. The threads of asyncio's own
    executor would be joined when the program ends, which a function that hangs would prevent.

    name: of the thread, for debuggers.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(outcome: Callable[[], None]) -> None:
        if not answer.done():
            outcome()

    def call() -> None:
        try:
            outcome = partial(answer.set_result, function())
        except BaseException as error:
            outcome = partial(answer.set_exception, _raisable(error))
        with suppress(RuntimeError):  # the loop is closed: the run has ended
            loop.call_soon_threadsafe(settle, outcome)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(call,), daemon=True, name=name).start()
    return await answer


def _raisable(error: BaseException) -> BaseException:
    """An exception that a future can have, and that does not end the event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")
