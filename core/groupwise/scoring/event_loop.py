"""EventLoop: runs async rewards concurrently, in one thread."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch

from groupwise.rewards import Reward
from groupwise.scoring.call import Call, Failure
from groupwise.scoring.settings import OF_PROCESS, Kept

PATIENCE = 1.0
"""Seconds after its deadline that a cancelled call has to end."""
HANDOVER = 0.25
"""The least seconds to wait for a result, so that the loop can deliver one that is ready."""


class InFlight:
    """The async calls of this process whose results are not taken yet.

    What changes in the process's settings while there are any is taken for their doing, and undone
    with the result of each. What is changed between calls (by a callback, say) stays.
    """

    def __init__(self) -> None:
        self._calls: set[Future[Any]] = set()
        self._kept = Kept({})

    def add(self, call: "Future[Any]") -> None:
        """Before the call could change anything."""
        if not self._calls:
            self._kept = Kept(OF_PROCESS)
        self._calls.add(call)

    def remove(self, call: "Future[Any]") -> None:
        """Raises a final Failure if a setting cannot be restored."""
        self._calls.discard(call)
        self._kept.restore()

    def forget(self, calls: set["Future[Any]"]) -> None:
        """Nobody will take their results."""
        self._calls -= calls


_in_flight = InFlight()
"""Of all event loops, since they share the process."""


class EventLoop:
    """One loop for the whole run, so that rewards can keep async clients between calls."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began = 0.0
        self._calls: set[Future[Any]] = set()

    def start(self, reward: Reward, call: Call) -> Callable[[], Any]:
        """Start a call; returns a function that waits for its values, or raises SampleErrors or
        Failure."""
        loop, answer = self._running(), Future[Any]()
        _in_flight.add(answer)
        self._calls.add(answer)
        task = asyncio.run_coroutine_threadsafe(self._call(reward, call, answer), loop)
        started = time.monotonic()

        def left() -> float:
            """Seconds until this call must have ended; if it is queued, the running call."""
            began = max(started, self._began) if call.began is None else call.began
            return began + reward.deadline + PATIENCE - time.monotonic()

        def result() -> Any:
            while True:
                try:
                    return answer.result(timeout=max(HANDOVER, left()))
                except TimeoutError as error:  # ours: the call's own became Failures
                    if left() > 0:
                        continue  # the call has begun since
                    task.cancel()
                    raise self._too_late(reward, loop) from error

        def taken() -> Any:
            try:
                return result()
            finally:
                self._calls.discard(answer)
                _in_flight.remove(answer)

        return taken

    def _too_late(self, reward: Reward, loop: asyncio.AbstractEventLoop) -> Failure:
        """The Failure for a call that a blocked loop could not even cancel."""
        busy = asyncio.current_task(loop)
        if self._loop is loop:
            self._loop = None  # abandon the blocked loop
        blocked = "" if busy is None else f"; {busy.get_name()} keeps the event loop busy"
        return Failure(_too_late(reward) + blocked)

    def wait(self, work: Coroutine[Any, Any, Any], deadline: float) -> None:
        """Run other async code in the loop, and wait for it; TimeoutError after `deadline` s."""
        asyncio.run_coroutine_threadsafe(work, self._running()).result(deadline)

    def close(self) -> None:
        """End the loop; running calls are cancelled."""
        _in_flight.forget(self._calls)
        self._calls = set()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon thread, so that a call that hangs cannot keep the program from ending.
            threading.Thread(target=_run, args=(self._loop,), daemon=True, name="rewards").start()
        return self._loop

    async def _call(self, reward: Reward, call: Call, answer: "Future[Any]") -> None:
        """Make a call. The result is set here, in the task, so that no other task delays it."""
        self._began = time.monotonic()
        task = asyncio.current_task()
        if task is not None:
            task.set_name(f"reward {reward.name!r}")
        try:
            answer.set_result(await _within(reward, call))
        except Exception as error:
            answer.set_exception(error)
        except GeneratorExit as error:
            answer.set_exception(Failure.of(error))
            raise
        except BaseException as error:
            answer.set_exception(error)
            raise
        finally:
            torch.set_default_device(None)  # of this thread


async def _within(reward: Reward, call: Call) -> Any:
    try:
        async with asyncio.timeout(reward.deadline):
            return await call.wait(reward.function)
    except TimeoutError as error:
        raise Failure(_too_late(reward)) from error
    except asyncio.CancelledError as error:
        raise Failure("raised CancelledError") from error


def _too_late(reward: Reward) -> str:
    return f"did not answer within {reward.deadline:g} s"


def _run(loop: asyncio.AbstractEventLoop) -> None:
    torch.set_grad_enabled(False)  # of this thread
    _until_stopped(loop)
    running = asyncio.all_tasks(loop)
    for task in running:
        task.cancel()
    if running:  # let them close their connections
        asyncio.gather(*running, return_exceptions=True).add_done_callback(lambda _: loop.stop())
        _until_stopped(loop)
    loop.close()


def _until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    stopped = False
    while not stopped:
        with suppress(SystemExit, KeyboardInterrupt):  # of a task, which also holds it
            loop.run_forever()
            stopped = True
