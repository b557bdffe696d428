"""A function for workers that hangs, crashes or raises; workers import it by name."""

from __future__ import annotations

import os
import signal
import sys
import time


class UnpicklableError(Exception):
    """An exception that cannot be rebuilt from its arguments, as pickle would."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def behave(action: str) -> str:
    """Performs `action` if it is one of the names below, else returns it in capitals."""
    if action == "hang":
        time.sleep(600)
    if action == "hang in C":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        pow(7, 7**9, 10**200_000)
    if action == "exit":
        os._exit(7)
    if action == "memory":
        return str(len(bytearray(6 * 1024**3)))
    if action == "raise":
        raise UnpicklableError("bad ", "item")
    if action == "modules":
        return ",".join(name for name in ("torch", "groupwise", "pydantic") if name in sys.modules)
    return action.upper()
