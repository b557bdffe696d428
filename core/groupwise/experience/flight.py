"""Flight: groups that an engine draws beside the run."""

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import torch

from groupwise.experience.part import Part
from groupwise.record import Group

PULSE = 0.2
"""Seconds after which processes tell each other what is complete, while a step waits for it."""


class Flight:
    """Draws groups in threads, and gives them back in the order in which they are complete.

    draw: plays groups, and yields those that are over; threads: how many calls of it there are at a
    time. With one, all groups that are begun together are drawn together; with more, each by
    itself, so that none waits for another one.
    """

    def __init__(
        self,
        draw: Callable[[Sequence[Group]], Iterator[Sequence[Group]]],
        *,
        threads: int,
        device: torch.device,
    ) -> None:
        self.draw, self.apart = draw, threads > 1
        self._threads = ThreadPoolExecutor(
            threads, thread_name_prefix="draws", initializer=lambda: _use(device)
        )
        self._lock = Lock()
        self._over = queue.SimpleQueue[Part | BaseException]()

    def begin(self, groups: Sequence[Group], made: Callable[[Sequence[Group]], Part]) -> None:
        """Begin to draw these groups, when those before them leave a thread free.

        made: makes a part of complete ones, one at a time.
        """
        size = 1 if self.apart else max(1, len(groups))
        for start in range(0, len(groups), size):
            self._threads.submit(self._draw, groups[start : start + size], made)

    def over(self, *, wait: bool) -> list[Part]:
        """The parts that are complete since the last call, after a pulse at most if it waits for
        one. Raises what a sampler raised."""
        parts = list[Part]()
        while True:
            try:
                part = self._over.get(timeout=PULSE if wait and not parts else 0.0)
            except queue.Empty:
                return parts
            if isinstance(part, BaseException):
                raise part
            parts.append(part)

    def close(self) -> None:
        """What has not begun is dropped, and what has is awaited: its weights must not change."""
        self._threads.shutdown(cancel_futures=True)

    def _draw(self, groups: Sequence[Group], made: Callable[[Sequence[Group]], Part]) -> None:
        try:
            for part in self.draw(groups):
                with self._lock:
                    over = made(part)
                self._over.put(over)
        except BaseException as error:
            self._over.put(error)


def _use(device: torch.device) -> None:
    """Set this process's GPU in a new thread, which would use the first one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
