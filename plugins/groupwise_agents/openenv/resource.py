"""Resource: an OpenEnv ResourceSession in an episode."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from groupwise_agents.threads import in_thread
from groupwise_agents.tool import Unavailable

T = TypeVar("T")


class Resource:
    """A session, whose methods are sync and run in threads, one at a time.

    rewards: of its results so far, None where one stated none; is_lost: whether a call was not
    waited for: it may still run, so only `close` is called.
    """

    def __init__(self, session: Any) -> None:
        self.session = session
        self.rewards: list[float | None] = []
        self.is_lost = False

    @classmethod
    async def made(cls, make: Callable[[], Any]) -> "Resource":
        """Of the session that a function makes; one that an episode no longer waits for is closed.

        It may be made before, while or after the episode is cancelled: whoever takes it out of
        `unused` closes it.
        """
        unused, is_left = deque[Any](), threading.Event()

        def close() -> None:
            with suppress(Exception):
                unused.pop().close()

        def run() -> None:
            unused.append(make())
            if is_left.is_set():
                close()

        try:
            await in_thread(run, "session")
        except asyncio.CancelledError:
            is_left.set()
            threading.Thread(target=close, daemon=True, name="session").start()
            raise
        return cls(unused.pop())

    async def call(self, function: Callable[[], T], name: str = "session") -> T:
        """What a function that calls a method returns. Raises Unavailable if the session is lost.

        name: of the thread.
        """
        if self.is_lost:
            raise Unavailable("the session was lost: an earlier call did not end in time")
        try:
            return await in_thread(function, name)
        except asyncio.CancelledError:
            self.is_lost = True
            raise

    @property
    def reward(self) -> float | None:
        """The last that was stated; None, which is not 0, if there is none."""
        return next((each for each in reversed(self.rewards) if each is not None), None)

    async def close(self) -> None:
        """Close the session, also while a lost call still runs."""
        await in_thread(self.session.close, "session")
