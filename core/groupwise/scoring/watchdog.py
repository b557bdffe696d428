"""Watchdog: ends a call in the main thread that does not answer within its deadline.

At the deadline a signal that nobody else uses raises `Overdue` in the main thread. That ends Python
code, sleeping and waiting. Code that looks at no signal gets a grace time; then it is said who does
not answer and where, and the process ends. Code that does not even let other threads of Python run
is ended by `faulthandler`, which needs none, and whose one timer is taken for that. Signals and
alarms of the called code are left alone.
"""

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from groupwise.scoring.call import Failure

Answer = TypeVar("Answer")

GRACE = 10.0
"""Seconds from the signal until the process ends."""
FRAMES = 3
"""Innermost lines that are shown of where it hangs."""


class Overdue(KeyboardInterrupt):
    """The deadline of the call that it is raised in is over; what Ctrl-C would end ends by it.

    No `except Exception` takes it, nor an event loop for an error of one of its callbacks.
    """


def watched(function: Callable[[], Answer], *, who: str, deadline: float) -> Answer:
    """Call a function in the main thread. Raises Failure where it takes more than its seconds.

    who: what is said to hang, where the process must end.
    """
    watchdog = _Watchdog(who, deadline)
    try:
        try:
            watchdog.begin()
            answer = function()
        finally:
            watchdog.end()
    except BaseException as error:
        watchdog.end()  # the signal may have come within the first `end`
        is_pressed = isinstance(error, KeyboardInterrupt) and not isinstance(error, Overdue)
        if is_pressed or not watchdog.is_overdue:
            raise
        raise _failure(deadline) from error
    if watchdog.is_overdue:  # the call took the exception for one of its own
        raise _failure(deadline)
    return answer


def _failure(deadline: float) -> Failure:
    # What was interrupted may have left anything half done, so nothing can go on from here.
    return Failure(f"did not answer within {deadline:g} s", is_final=True)


class _Watchdog:
    """Watches one call, in a thread of its own."""

    on_duty: "_Watchdog | None" = None

    def __init__(self, who: str, deadline: float) -> None:
        self.who, self.deadline = who, deadline
        self.is_overdue, self._over = False, threading.Event()
        self._ending = threading.Lock()
        self._signal = _free_signal()

    def begin(self) -> None:
        if self._signal is not None:
            # It stays: by default a signal that comes late would end the process.
            signal.signal(self._signal, _bark)
        _Watchdog.on_duty = self
        _last_resort(self.deadline + 2 * GRACE)
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def end(self) -> None:
        """May be called twice: the signal comes at most once, but it may come here."""
        _Watchdog.on_duty = None
        with self._ending:  # a signal is on its way before the next call begins, or never
            self._over.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        main = threading.main_thread().ident or 0
        if self._over.wait(self.deadline):
            return
        with self._ending:
            if self._over.is_set():
                return
            self.is_overdue = True
            if self._signal is not None:
                signal.pthread_kill(main, self._signal)
        if self._over.wait(GRACE):
            return
        where = traceback.format_stack(sys._current_frames().get(main))[-FRAMES:]
        try:
            print(
                f"\n{self.who} did not answer within {self.deadline:g} s, nor can it be "
                f"interrupted:\n{''.join(where)}The run ends here; its last checkpoint stands. "
                f"With `isolate: true` a reward is called in a process that can be killed.",
                file=sys.__stderr__,
                flush=True,
            )
        finally:  # even where a reward has closed stderr
            os._exit(1)


def _bark(_: int, __: FrameType | None) -> None:
    if _Watchdog.on_duty is not None:
        _Watchdog.on_duty = None
        raise Overdue


def _free_signal() -> Any:
    """A signal that nobody handles; None where threads cannot be signalled."""
    if not hasattr(signal, "pthread_kill"):
        return None
    numbers: list[Any] = [signal.SIGUSR2, signal.SIGUSR1]
    if hasattr(signal, "SIGRTMAX"):
        numbers = [*range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1), *numbers]
    free = (number for number in numbers if signal.getsignal(number) in (signal.SIG_DFL, _bark))
    return next(free, None)


def _last_resort(seconds: float) -> None:
    """Have the process end, with a line for each frame, whatever it is doing then."""
    if sys.__stderr__ is not None and not sys.__stderr__.closed:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
