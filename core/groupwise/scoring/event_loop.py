"""EventLoop: runs async rewards concurrently, in one thread."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

import torch

from groupwise.rewards import Reward
from groupwise.scoring.reward_call import Failure, RewardCall
from groupwise.scoring.settings import OF_PROCESS, SavedSettings

PATIENCE = 1.0
"""Seconds after its deadline that a cancelled call has to end."""
HANDOVER = 0.25
"""The least seconds to wait for a result, so that the loop can deliver one that is ready."""


class EventLoop:
    """One loop for the whole run, so that rewards can keep async clients between calls.

    What changes in the process's settings while calls are in flight (begun, and their results not
    taken yet) is taken for their doing, and undone with the result of each. What is changed between
    calls (by a callback, say) stays.
    """

    _in_flight: ClassVar[set[Future[Any]]] = set()
    """The calls of all loops, since they share the process."""
    _before: ClassVar[SavedSettings] = SavedSettings({})
    """The settings before the first of them began."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began = 0.0
        self._timeouts: dict[str, list[asyncio.Timeout]] = {}
        self._since: dict[str, float] = {}
        self._calls: set[Future[Any]] = set()

    def start(self, reward: Reward, call: RewardCall) -> Callable[[], Any]:
        """Start a call; returns a function that waits for its values, or raises SampleErrors or
        Failure."""
        loop, answer = self._running(), Future[Any]()
        if not self._in_flight:
            EventLoop._before = SavedSettings(OF_PROCESS)
        for calls in (self._in_flight, self._calls):
            calls.add(answer)
        task = asyncio.run_coroutine_threadsafe(self._call(reward, call, answer), loop)
        started = time.monotonic()

        def left() -> float:
            """Seconds until this call must have ended; if it is queued, the running call."""
            since = self._since.get(reward.name, 0.0)
            began = max(started, self._began) if call.began is None else max(call.began, since)
            return began + reward.deadline + PATIENCE - time.monotonic()

        def result() -> Any:
            try:
                while not wait([answer], timeout=max(HANDOVER, left())).done:
                    if left() <= 0:  # else the call has begun since
                        task.cancel()
                        raise self._blocked(reward, loop)
                return answer.result()
            finally:
                for calls in (self._in_flight, self._calls):
                    calls.discard(answer)
                self._before.restore()

        return result

    def _blocked(self, reward: Reward, loop: asyncio.AbstractEventLoop) -> Failure:
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
        self._in_flight.difference_update(self._calls)  # nobody will take their results
        self._calls.clear()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop, self._timeouts = asyncio.new_event_loop(), {}
            # A daemon thread, so that a call that hangs cannot keep the program from ending.
            threading.Thread(
                target=run_until_stopped, args=(self._loop,), daemon=True, name="rewards"
            ).start()
        return self._loop

    async def _call(self, reward: Reward, call: RewardCall, answer: Future[Any]) -> None:
        """Make a call. The result is set here, in the task, so that no other task delays it."""
        self._began = time.monotonic()
        task = asyncio.current_task()
        assert task is not None
        task.set_name(f"reward {reward.name!r}")
        try:
            async with self._deadline(reward) as left:
                values = await call.wait(reward.function, left)
            answer.set_result(values)
        except TimeoutError:  # the call's own is a Failure
            answer.set_exception(Failure(_too_late(reward)))
        except asyncio.CancelledError as error:
            answer.set_exception(Failure.of(error))
        except BaseException as error:
            is_dropped = isinstance(error, GeneratorExit)
            answer.set_exception(Failure.of(error) if is_dropped else error)
            if not isinstance(error, Exception):
                raise
        finally:
            torch.set_default_device(None)  # of this thread

    @asynccontextmanager
    async def _deadline(self, reward: Reward) -> AsyncIterator[Callable[[], float]]:
        """The context of a call, which raises TimeoutError at its deadline; what says how many
        seconds are left.

        The time begins when no earlier call of this reward runs: that one has the connections and
        slots of the reward, for which the requests of this one wait.
        """
        now = asyncio.get_running_loop().time

        def left() -> float:
            end = timeout.when()
            return reward.deadline if end is None else end - now()

        async with asyncio.timeout(None) as timeout:
            running = self._timeouts.setdefault(reward.name, [])
            running.append(timeout)
            self._start_time(running, reward)
            try:
                yield left
            finally:
                running.remove(timeout)
                with suppress(RuntimeError):  # the loop has ended, and drops its coroutines
                    self._start_time(running, reward)

    def _start_time(self, running: list[asyncio.Timeout], reward: Reward) -> None:
        """Begin the time of the earliest call that runs, unless it has begun."""
        for timeout in running[:1]:
            if timeout.when() is None:
                timeout.reschedule(asyncio.get_running_loop().time() + reward.deadline)
                self._since[reward.name] = time.monotonic()


def _too_late(reward: Reward) -> str:
    return f"did not answer within {reward.deadline:g} s"


def run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped; tasks that still run are then cancelled and awaited, so
    that they can close their connections."""
    torch.set_grad_enabled(False)  # of this thread
    stopped = False
    with asyncio.Runner(loop_factory=lambda: loop):
        while not stopped:
            with suppress(SystemExit, KeyboardInterrupt):  # of a task, which also holds it
                loop.run_forever()
                stopped = True
