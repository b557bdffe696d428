"""Event loops for processes that have neither sockets nor files: only timers and tasks."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any


class _Clock:
    """Waits as a selector does, until something is due or a thread wakes it."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def select(self, timeout: float | None) -> Sequence[Any]:
        self._woken.wait(timeout)
        self._woken.clear()
        return ()

    def wake(self) -> None:
        self._woken.set()


class Loop(asyncio.BaseEventLoop):
    """An event loop without descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Clock()

    def _process_events(self, event_list: Sequence[Any]) -> None:
        """Nothing but time ever happens."""

    def _write_to_self(self) -> None:
        self._selector.wake()


class _Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = Loop


def install() -> None:
    """Let `asyncio` make these loops, and no others."""
    asyncio.set_event_loop_policy(_Policy())


_own = list[Loop]()


def settle(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine gives in the end. Raises what it raises.

    All of them run in one loop, so that what a program keeps of it stays of use; where a loop is
    running already, it is another one's, in a thread.
    """
    if asyncio._get_running_loop() is None:
        if not _own:
            _own.append(Loop())
        return _own[0].run_until_complete(coroutine)
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome[:] = [True, asyncio.run(coroutine)]
        except BaseException as error:
            outcome[:] = [False, error]

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if not outcome[0]:
        raise outcome[1]
    return outcome[1]
