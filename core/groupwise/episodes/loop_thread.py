"""LoopThread: the event loop in which a run's episodes are played."""

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import Any, TypeVar

from groupwise.episodes.daemon_threads import DaemonThreads
from groupwise.kit import terminal
from groupwise.kit.errors import UserError
from groupwise.scoring.event_loop import run_until_stopped

T = TypeVar("T")

BLOCKED = 10.0
"""Seconds without an answer of the loop after which a warning says where it is."""
PATIENCE = 5.0
"""Seconds to wait for the loop's tasks and thread to end."""


class CoroutineOverdue(Exception):  # noqa: N818
    """A coroutine has not ended in time, and is cancelled."""


class BlockedError(UserError):
    """Code that does not wait keeps the loop busy."""


class LoopThread:
    """An event loop in a thread of its own: the caller's thread samples, and in a notebook it has a
    running loop already. One for a whole run, so that environments can keep async clients.

    deadline: seconds for which code that does not wait may keep the loop busy; place: where a
    thread is, by its number, in words.
    """

    def __init__(self, *, deadline: float, place: Callable[[int | None], str]) -> None:
        self.deadline, self.place = deadline, place
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = threading.Lock()  # groups in flight are drawn in several threads
        self._thread: threading.Thread | None = None
        self._end: weakref.finalize[..., LoopThread] | None = None
        self._error: BlockedError | None = None
        # Whether the loop has answered since it was last asked to, and when that was.
        self._answered, self._asked, self._has_warned = threading.Event(), 0.0, False
        self._answered.set()

    def run(self, coroutine: Coroutine[Any, Any, T], *, within: float | None = None) -> T:
        """Run a coroutine in the loop, and wait for its result.

        Raises CoroutineOverdue if it takes longer than `within` seconds; and BlockedError if the
        loop has been busy for longer than the deadline, now and in all later calls: what keeps it
        cannot be ended, and no episode can go on.
        """
        if self._error is not None:
            coroutine.close()
            raise self._error
        loop, started = self._running(), time.monotonic()
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        pulse = min(1.0, self.deadline / 4, within or 1.0)
        while not wait([future], timeout=pulse).done:
            self._check(loop)
            if within is not None and time.monotonic() - started > within:
                future.cancel()
                raise CoroutineOverdue
        return future.result()

    @property
    def is_open(self) -> bool:
        """Whether the loop runs: from the first coroutine on, until it is closed."""
        return self._loop is not None

    def close(self) -> None:
        """End the loop; what still runs is cancelled."""
        if self._end is not None:
            self._end()
        self._loop = self._end = None

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask the loop for an answer; raise BlockedError if it gives none for too long."""
        if self._answered.is_set():
            self._answered.clear()
            self._asked = time.monotonic()
            loop.call_soon_threadsafe(self._answered.set)
            return
        seconds = time.monotonic() - self._asked
        if seconds > self.deadline:
            if self._end is not None:
                self._end.detach()  # the thread cannot be waited for
            loop.call_soon_threadsafe(loop.stop)  # should it ever be free again
            self._error = BlockedError(
                f"environment: {self._blocked(seconds)}, and no episode can go on. This cannot be "
                f"ended, so the run ends here; its last checkpoint is intact (`turn_deadline` sets "
                f"how long it may take)"
            )
            raise self._error
        if seconds > BLOCKED and not self._has_warned:
            self._has_warned = True
            terminal.say(f"warning: {self._blocked(seconds)}, and all other episodes wait for it")

    def _blocked(self, seconds: float) -> str:
        thread = None if self._thread is None else self._thread.ident
        return (
            f"code that is not async has kept the event loop busy for {seconds:.0f} s"
            f"{self.place(thread)}: await it, or call it by `await asyncio.to_thread(...)`"
        )

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._opening:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_default_executor(DaemonThreads())
                self._thread = threading.Thread(
                    target=run_until_stopped, args=(self._loop,), daemon=True, name="episodes"
                )
                self._thread.start()
                self._end = weakref.finalize(self, _stop, self._loop, self._thread)
            return self._loop


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE)
