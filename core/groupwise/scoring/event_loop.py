"""EventLoop: where async rewards wait for their servers, all at once, in a thread of its own."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch

from groupwise.rewards import Reward
from groupwise.scoring.call import Call, Failure

PATIENCE = 1.0
"""Seconds beyond its deadline in which a call may end itself when it is cancelled."""
HANDOVER = 0.25
"""Seconds in which the loop may hand over an answer that is looked for after that."""


class EventLoop:
    """One loop for the life of a run, so that async clients may be kept between calls."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began = 0.0

    def start(self, reward: Reward, call: Call) -> Callable[[], Any]:
        """What waits for the answer; it raises SampleErrors, or Failure where there is none."""
        loop, answer = self._running(), Future[Any]()
        task = asyncio.run_coroutine_threadsafe(self._call(reward, call, answer), loop)
        started = time.monotonic()

        def left() -> float:
            """Seconds until it must have ended; one that waits its turn has those of another."""
            began = max(started, self._began) if call.began is None else call.began
            return began + reward.deadline + PATIENCE - time.monotonic()

        def result() -> Any:
            while True:
                try:
                    return answer.result(timeout=max(HANDOVER, left()))
                except TimeoutError as error:  # nothing else: the call's own are failures by now
                    if left() > 0:
                        continue  # it has begun meanwhile
                    task.cancel()
                    raise self._too_late(reward, loop) from error

        return result

    def _too_late(self, reward: Reward, loop: asyncio.AbstractEventLoop) -> Failure:
        """Why there is no answer from a loop that does not even cancel a call."""
        busy = asyncio.current_task(loop)
        if self._loop is loop:
            self._loop = None  # it answers nobody any more
        blocked = "" if busy is None else f"; {busy.get_name()} keeps the event loop busy"
        return Failure(_too_late(reward) + blocked)

    def close(self) -> None:
        """End the loop; calls under way are cancelled."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon: one that hangs must not keep the program from ending.
            threading.Thread(target=_run, args=(self._loop,), daemon=True, name="rewards").start()
        return self._loop

    async def _call(self, reward: Reward, call: Call, answer: "Future[Any]") -> None:
        """Make a call. It is answered at once, not when the loop comes to it after other calls."""
        self._began = time.monotonic()
        task = asyncio.current_task()
        if task is not None:
            task.set_name(f"reward {reward.name!r}")
        try:
            answer.set_result(await _within(reward, call))
        except Exception as error:
            answer.set_exception(error)
        except BaseException as error:
            answer.set_exception(error)
            raise


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
    under_way = asyncio.all_tasks(loop)
    for task in under_way:
        task.cancel()
    if under_way:  # they close what they have open
        asyncio.gather(*under_way, return_exceptions=True).add_done_callback(lambda _: loop.stop())
        _until_stopped(loop)
    loop.close()


def _until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    stopped = False
    while not stopped:
        with suppress(SystemExit, KeyboardInterrupt):  # a task's, which has it, too
            loop.run_forever()
            stopped = True
