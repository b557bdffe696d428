"""LoopThread: the event loop in which a run's episodes are played."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own: the caller's thread samples, and in a notebook it has a
    running loop already. One for a whole run, so that environments can keep async clients."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: Callable[[], object] = lambda: None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for its result."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=_run_forever, args=(self._loop,), daemon=True, name="episodes"
            )
            thread.start()
            self._end = weakref.finalize(self, _stop, self._loop, thread)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        self._end()
        self._loop = None


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
