"""TimedCalls: calls of a sampler in threads of their own, of which late ones are given up."""

import threading
from collections.abc import Callable
from concurrent.futures import wait
from typing import TypeVar

import torch

from groupwise.environment import CompletionFailed
from groupwise.episodes.daemon_threads import DaemonThreads
from groupwise.kit.errors import UserError

T = TypeVar("T")


class OverdueError(CompletionFailed):
    """A call has not returned by its deadline, so its completions are failed samples."""


class TimedCalls:
    """Makes calls that may never return.

    A thread cannot be ended. So a call that is given up keeps its place among the `most` at a time
    for as long as it runs, and what it then returns is dropped; when no place is left, no other
    call can be made.

    name: of what is called; seconds: the deadline of each call.
    """

    def __init__(self, name: str, *, most: int, seconds: float) -> None:
        self.name, self.most, self.seconds = name, most, seconds
        self._threads = DaemonThreads()
        self._changed = threading.Condition()
        self._running, self._late = set[object](), set[object]()

    def __call__(self, call: Callable[[], T]) -> T:
        """What a call returns, made in another thread as soon as fewer than `most` run.

        Raises OverdueError if it is late, UserError if no other one can be made any more.
        """
        this, device = object(), _device()
        with self._changed:
            self._changed.wait_for(lambda: len(self._running) < self.most or self._is_stuck)
            self._check()
            self._running.add(this)
        answer = self._threads.submit(self._made, call, this, device)
        wait([answer], timeout=self.seconds)
        with self._changed:
            if this in self._running:
                self._late.add(this)
                self._changed.notify_all()
                self._check()
                raise OverdueError(f"{self.name} has not returned for {self.seconds:g} s")
        return answer.result()

    def _made(self, call: Callable[[], T], this: object, device: int) -> T:
        try:
            with torch.cuda.device(device), torch.no_grad():
                return call()
        finally:
            with self._changed:
                self._running.remove(this)
                self._late.discard(this)
                self._changed.notify_all()

    @property
    def _is_stuck(self) -> bool:
        return len(self._late) == self.most

    def _check(self) -> None:
        if self._is_stuck:
            calls = "its call" if self.most == 1 else f"any of its {self.most} calls"
            raise UserError(
                f"{self.name} has not returned from {calls} for {self.seconds:g} s (`timeout`), "
                f"and takes no other one at the same time, so nothing can be sampled any more; the "
                f"run's last checkpoint is intact"
            )


def _device() -> int:
    """The number of this thread's GPU; -1 if none is in use."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else -1
