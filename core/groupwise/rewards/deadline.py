"""Deadline: how long the running call of a reward may still take."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

_END: ContextVar[float] = ContextVar("end of the call", default=math.inf)


def seconds_left() -> float:
    """Seconds until the deadline of the reward's call that this is asked in; infinite outside one.

    A reward that checks one completion after the other can stop before it, and report the rest as
    NaN by SampleErrors; at the deadline the whole call would fail.
    """
    return _END.get() - time.monotonic()


@contextmanager
def ending_in(seconds: float) -> Iterator[None]:
    """The context of a call with that much time."""
    token = _END.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that is dropped ends in another context
            _END.reset(token)
