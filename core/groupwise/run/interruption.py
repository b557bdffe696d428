"""Interruption: on Ctrl-C or SIGTERM, the current step is finished and the run is saved."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from groupwise.run import exits

ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that end a process: from a scheduler, and from a closed terminal."""
HEEDED = (signal.SIGINT, signal.SIGTERM)
"""Signals sent on purpose, which are handled even if the process inherited them as ignored."""
Handler = Callable[[int, FrameType | None], None]
Announce = Callable[[str], None]
"""Called once, with the name of the first signal, in a thread of its own: a handler may interrupt
whoever is printing, and would wait for ever for what that one holds."""


class Interruption:
    """True after Ctrl-C or another signal; a further Ctrl-C interrupts at once.

    Other signals may come twice without meaning it: a scheduler sends them to every process, and
    the launcher sends them on.
    """

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._signals: list[int] = []
        self._held = self._waits = False

    def __bool__(self) -> bool:
        return bool(self._signals)

    def note(self, number: int, _: FrameType | None) -> None:
        if not self._signals:
            name = signal.Signals(number).name
            threading.Thread(target=self._announce, args=(name,), daemon=True).start()
        again = bool(self._signals) and number == signal.SIGINT
        self._signals.append(number)
        if again and not self._held:
            raise KeyboardInterrupt
        self._waits = self._waits or again

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context that is not interrupted: KeyboardInterrupt is raised at its end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._waits:
            self._waits = False
            raise KeyboardInterrupt


@contextmanager
def interruptible(announce: Announce) -> Iterator[Interruption]:
    """A context in which signals only set the interruption, so that the current step ends."""
    interruption = Interruption(announce)
    with _handled([signal.SIGINT, *ENDING], interruption.note):
        yield interruption


@contextmanager
def orderly() -> Iterator[None]:
    """A context in which signals that end the process raise KeyboardInterrupt, like Ctrl-C, and
    exits of called code are errors."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(ENDING, interrupt), exits.reported():
        yield


@contextmanager
def _handled(numbers: list[signal.Signals], handler: Handler) -> Iterator[None]:
    """A context in which a handler gets these signals.

    SIGHUP stays ignored if it was (by `nohup`). SIGINT is handled even if it was ignored, as in a
    process that a script starts in the background.
    """
    heeded = [n for n in numbers if n in HEEDED or signal.getsignal(n) is not signal.SIG_IGN]
    try:
        previous = {number: signal.signal(number, handler) for number in heeded}
    except ValueError:  # not in the main thread, which alone can handle signals
        previous = {}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
