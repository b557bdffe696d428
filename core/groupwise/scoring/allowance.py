"""Allowance: how long a process may take for a request, whether the machine is busy or not."""

import time
from contextlib import suppress

import psutil

LAST_RESORT = 5
"""Wall time that a process may take, in multiples of its processor time."""


class Allowance:
    """The time for one request, which begins when this is constructed.

    It is over when `seconds` of wall time have passed, and as many of processor time, that of the
    process together with all that it has started; or when five times as much wall time has, for a
    process that sleeps.

    pid: of the process; None for one that waits for others, whose limit is wall time alone.
    """

    def __init__(self, seconds: float, pid: int | None = None) -> None:
        self.seconds, self._pid = seconds, pid
        self._began = time.monotonic()
        self._used = 0.0 if pid is None else processor_time(pid)

    @property
    def longest(self) -> float:
        """Seconds of wall time after which it is over in any case."""
        return self.seconds * (1 if self._pid is None else LAST_RESORT)

    @property
    def left(self) -> float:
        """Seconds before which it is not over, if but one thread computes; 0 if it is."""
        passed = time.monotonic() - self._began
        if self._pid is None or passed < self.seconds:
            return max(0.0, self.seconds - passed)
        unused = self.seconds - (processor_time(self._pid) - self._used)
        return max(0.0, min(unused, self.longest - passed))

    @property
    def is_used(self) -> bool:
        """Whether the process has used up its processor time."""
        return self._pid is not None and processor_time(self._pid) - self._used >= self.seconds


def processor_time(pid: int) -> float:
    """Seconds that a process and all that it has started have computed; 0 if it has ended."""
    seconds = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):  # it has ended since
                times = each.cpu_times()
                seconds += times.user + times.system
                seconds += times.children_user + times.children_system  # of those that have ended
    return seconds
