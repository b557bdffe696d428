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


class EventLoop:
    """One loop for the life of a run, so that async clients may be kept between calls."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, reward: Reward, call: Call) -> Callable[[], Any]:
        """What waits for the answer; it raises SampleErrors, or Failure where there is none."""
        loop = self._running()
        future = asyncio.run_coroutine_threadsafe(_within(reward, call), loop)
        last = time.monotonic() + reward.deadline + PATIENCE
        return lambda: self._result(loop, future, reward, max(0.0, last - time.monotonic()))

    def _result(
        self, loop: asyncio.AbstractEventLoop, future: "Future[Any]", reward: Reward, seconds: float
    ) -> Any:
        try:
            return future.result(timeout=seconds)
        except TimeoutError as error:  # nothing else: the call's own are failures by now
            busy = asyncio.current_task(loop)
            future.cancel()
            self._loop = None  # it answers nobody any more
            blocked = "" if busy is None else f"; {busy.get_name()} keeps the event loop busy"
            raise Failure(_too_late(reward) + blocked) from error

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon: one that hangs must not keep the program from ending.
            threading.Thread(target=_run, args=(self._loop,), daemon=True, name="rewards").start()
        return self._loop


async def _within(reward: Reward, call: Call) -> Any:
    task = asyncio.current_task()
    if task is not None:
        task.set_name(f"reward {reward.name!r}")
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
    stopped = False
    while not stopped:
        with suppress(SystemExit, KeyboardInterrupt):  # a task's, which has it, too
            loop.run_forever()
            stopped = True
    loop.close()
