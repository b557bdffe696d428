"""Functions for workers that hang, crash, raise or come late; workers import them by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


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
    if action == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return action.upper()


def behave_later(case: tuple[str, str]) -> str:
    """Performs the first action at its first call with this case, and the second one then.

    case: the actions, separated by a comma, and a file that remembers the call.
    """
    actions, file = case
    first, second = actions.split(",")
    is_first = not Path(file).exists()
    Path(file).touch()
    return behave(first if is_first else second)


def after_a_wait(case: tuple[Callable[[Any], Any], Any, float]) -> Any:
    """Calls a function on an item after some seconds in which the worker does not run."""
    function, item, seconds = case
    time.sleep(seconds)
    return function(item)


def sleeping_on_sevens(case: tuple[Callable[[Any], Any], Any]) -> Any:
    """Calls a function on an item; never on one that holds a 777."""
    function, item = case
    time.sleep(600 if "777" in repr(item) else 0)
    return function(item)


def never_starts(_: int) -> None:
    """In place of setting a worker's limits, before its first item."""
    time.sleep(600)
