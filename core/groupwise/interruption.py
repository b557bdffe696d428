"""Interruption: Ctrl-C lets the step in progress finish."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C (or SIGTERM) was pressed; a second time it interrupts at once."""
    asked: list[int] = []

    def ask(number: int, _: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        previous = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: somebody else handles signals
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
