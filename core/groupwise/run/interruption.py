"""Interruption: Ctrl-C lets the step in progress finish; other signals end a run in order, too."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals of who ends a process: a scheduler, and a terminal that is closed."""
HEEDED = (signal.SIGINT, signal.SIGTERM)
"""Signals that somebody sends on purpose, heeded where they were ignored, too."""
Handler = Callable[[int, FrameType | None], None]


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, or a signal came; Ctrl-C after that interrupts at once.

    Others may come twice: from a scheduler to every process, and again from the launcher of them.
    """
    signals: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if signals and number == signal.SIGINT:
            raise KeyboardInterrupt
        signals.append(number)

    with _handled([signal.SIGINT, *ENDING], note):
        yield lambda: bool(signals)


@contextmanager
def orderly() -> Iterator[None]:
    """Signals that would end the process at once interrupt it as Ctrl-C does."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(ENDING, interrupt):
        yield


@contextmanager
def _handled(numbers: list[signal.Signals], handler: Handler) -> Iterator[None]:
    """Signals go to a handler; a closed terminal that is ignored, by `nohup`, stays so.

    Ctrl-C is ignored by whatever a script starts in the background, and stops it here all the same.
    """
    heeded = [n for n in numbers if n in HEEDED or signal.getsignal(n) is not signal.SIG_IGN]
    try:
        previous = {number: signal.signal(number, handler) for number in heeded}
    except ValueError:  # not the main thread: somebody else handles signals
        previous = {}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
