"""Threads: torch's CPU threads, as many as there are free cores.

Threads of a tensor operation wait for the slowest of them. If another program occupies a core, one
of them has to share it, and the others wait: two threads beside two busy programs were slower than
one thread. So the number follows the load of the machine while the run goes on.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil
import torch

INTERVAL = 1.0
"""Seconds over which the load is measured, at least: clocks count CPU time in steps of 0.01 s."""
SET_BY_USER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Reading(NamedTuple):
    """Seconds so far: time passed; cores idle, summed; CPU time of this process and its children.

    The children count as this process, since it waits for them: rewards in worker processes.
    """

    clock: float
    idle: float
    own: float


class Threads:
    """Sets the number of torch's threads to that of free cores, from one to the initial number.

    Only in the thread that made it, since torch keeps a number for each thread. If the user sets
    `OMP_NUM_THREADS` or `MKL_NUM_THREADS`, or if there is one thread only, nothing is changed.

    adapts: whether the number follows the load.
    """

    def __init__(self, *, follow_load: bool = True) -> None:
        self.most, self._owner = torch.get_num_threads(), threading.get_ident()
        is_free = not any(os.environ.get(name) for name in SET_BY_USER)
        self.adapts = follow_load and is_free and self.most > 1
        self._last = read() if self.adapts else Reading(0.0, 0.0, 0.0)

    def adapt(self) -> None:
        """Measure the load since the last call, and set the number of threads.

        Cores are free if they were idle or used by this process; cheap enough to call before each
        batch.
        """
        if not self.adapts or threading.get_ident() != self._owner:
            return
        if time.monotonic() - self._last.clock < INTERVAL:
            return
        now, before = read(), self._last
        self._last = now
        passed = now.clock - before.clock
        free = (now.idle - before.idle + now.own - before.own) / passed
        number = min(max(round(free), 1), self.most)
        if number != torch.get_num_threads():
            torch.set_num_threads(number)

    def restore(self) -> None:
        """Set the initial number again."""
        if self.adapts:
            torch.set_num_threads(self.most)


@contextmanager
def following_load(device: torch.device) -> Iterator[Threads]:
    """The threads of a run that computes on `device`; the initial number is restored at the end.

    On a GPU the number is not changed.
    """
    threads = Threads(follow_load=device.type == "cpu")
    try:
        yield threads
    finally:
        threads.restore()


def read() -> Reading:
    """The machine's load so far, on the cores that this process may use."""
    cores = psutil.cpu_times(percpu=True)
    if hasattr(os, "sched_getaffinity"):
        cores = [cores[number] for number in os.sched_getaffinity(0) if number < len(cores)]
    idle = sum(core.idle + getattr(core, "iowait", 0.0) for core in cores)
    return Reading(time.monotonic(), idle, _own_seconds())


def _own_seconds() -> float:
    this = psutil.Process()
    seconds = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            seconds += sum(process.cpu_times()[:4])  # of itself and of children that ended
        except psutil.Error:  # it ended meanwhile, and its parent's times have its own
            continue
    return seconds
