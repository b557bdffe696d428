"""EventLoop: runs async rewards concurrently, in one thread."""

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
from groupwise.scoring.settings import OF_PROCESS, Kept

PATIENCE = 1.0
"""Seconds after its deadline that a cancelled call has to end."""
HANDOVER = 0.25
"""The least seconds to wait for a result, so that the loop can deliver one that is ready."""


class EventLoop:
    """One loop for the whole run, so that rewards can keep async clients between calls."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began = 0.0
        self._kept = Kept({})

    def start(self, reward: Reward, call: Call) -> Callable[[], Any]:
        """Start a call; returns a function that waits for its values, or raises SampleErrors or
        Failure."""
        loop, answer = self._running(), Future[Any]()
        kept = self._kept
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
                finally:
                    kept.restore()

        return result

    def _too_late(self, reward: Reward, loop: asyncio.AbstractEventLoop) -> Failure:
        """The Failure for a call that a blocked loop could not even cancel."""
        busy = asyncio.current_task(loop)
        if self._loop is loop:
            self._loop = None  # abandon the blocked loop
        blocked = "" if busy is None else f"; {busy.get_name()} keeps the event loop busy"
        return Failure(_too_late(reward) + blocked)

    def close(self) -> None:
        """End the loop; running calls are cancelled."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._kept = Kept(OF_PROCESS)  # before any call of the loop could change it
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
