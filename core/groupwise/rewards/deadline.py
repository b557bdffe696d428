"""Deadline: how long the running call of a reward may still take."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar

_LEFT: ContextVar[Callable[[], float]] = ContextVar("seconds left", default=lambda: math.inf)


def seconds_left() -> float:
    """Seconds until the deadline of the reward's call that this is asked in; infinite outside one.

    A reward that checks one completion after the other can stop before it, and report the rest as
    NaN by SampleErrors; at the deadline the whole call would fail. While an async call waits for
    earlier ones of its reward, its time does not run.
    """
    return _LEFT.get()()


def ending_in(seconds: float) -> AbstractContextManager[None]:
    """The context of a call with that much time, which begins now."""
    end = time.monotonic() + seconds
    return lasting(lambda: end - time.monotonic())


@contextmanager
def lasting(left: Callable[[], float]) -> Iterator[None]:
    """The context of a call that has so many seconds left."""
    token = _LEFT.set(left)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that is dropped ends in another context
            _LEFT.reset(token)
