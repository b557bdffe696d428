"""Effort: the time of a call, as on an idle machine.

Other programs on the machine slow down a test: cores are shared, and so are caches, so that even
CPU time grows. The same calculation before and after the call tells how much, and its time is
divided by that. A bound then holds for the work that is done, not for the state of the machine.
"""

import time
from collections.abc import Callable
from typing import Self

USUAL = 0.01
"""Seconds that `_yardstick` takes on an idle core of a server of 2023."""


class Effort:
    """A context; at its end `cpu` and `wall` are seconds as on an idle machine, `elapsed` real."""

    def __enter__(self) -> Self:
        self._before = _yardstick()
        self._started = time.process_time(), time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        cpu, wall = time.process_time(), time.monotonic()
        both = zip(self._before, _yardstick(), strict=True)
        slower_cpu, self._slower = (max(USUAL, *pair) / USUAL for pair in both)
        self.cpu = (cpu - self._started[0]) / slower_cpu
        self.elapsed = wall - self._started[1]
        self.wall = self.scaled(self.elapsed)

    def scaled(self, seconds: float) -> float:
        """Measured seconds within the context, as on an idle machine."""
        return seconds / self._slower


def cpu_within(seconds: float, call: Callable[[], object]) -> bool:
    """Whether a call takes less CPU time than this. Only if it does not on the machine as it is, it
    is measured again, as on an idle one: for calls that are many and short."""
    started = time.process_time()
    call()
    if time.process_time() - started < seconds:
        return True
    with Effort() as effort:
        call()
    return effort.cpu < seconds


def _yardstick() -> tuple[float, float]:
    """CPU and wall seconds of a fixed calculation."""
    cpu, wall = time.process_time(), time.monotonic()
    text = "a1 " * 1000
    for number in range(300):
        text.replace("a", str(number)).split()
    return time.process_time() - cpu, time.monotonic() - wall
