"""What workers are given in the tests: functions they must import by name."""

from __future__ import annotations

import os
import signal
import sys
import time


class UnpicklableError(Exception):
    """Cannot be rebuilt from its arguments, as exceptions sent between processes are."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def behave(what: str) -> str:
    """Does what it is told, or answers."""
    if what == "hang":
        time.sleep(600)
    if what == "hang in C":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        pow(7, 7**9, 10**200_000)
    if what == "exit":
        os._exit(7)
    if what == "memory":
        return str(len(bytearray(6 * 1024**3)))
    if what == "raise":
        raise UnpicklableError("bad ", "item")
    if what == "modules":
        return ",".join(name for name in ("torch", "groupwise", "pydantic") if name in sys.modules)
    return what.upper()
