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


class Interruption:
    """Whether Ctrl-C was pressed, or a signal came; Ctrl-C after that interrupts at once.

    Others may come twice: from a scheduler to every process, and again from the launcher of them.
    """

    def __init__(self) -> None:
        self._signals: list[int] = []
        self._held = self._waits = False

    def __bool__(self) -> bool:
        return bool(self._signals)

    def note(self, number: int, _: FrameType | None) -> None:
        again = bool(self._signals) and number == signal.SIGINT
        self._signals.append(number)
        if again and not self._held:
            raise KeyboardInterrupt
        self._waits = again

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is torn by no interruption: one that comes meanwhile is raised at its end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._waits:
            self._waits = False
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Signals let the step in progress end."""
    interruption = Interruption()
    with _handled([signal.SIGINT, *ENDING], interruption.note):
        yield interruption


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
