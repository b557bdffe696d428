"""Watchdog: ends a call in the main thread that exceeds its deadline.

At the deadline, a signal that nothing else uses raises `Overdue` in the main thread, which ends
Python code, sleeping and waiting. Code that does not check for signals gets a grace time; then a
message says which call hangs and where, and the process ends. Code that holds the GIL is ended by
the timer of `faulthandler`, which needs no Python thread. Signals and alarms of the called code are
not touched.
"""

import faulthandler
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from os import _exit  # the run has one of its own, for calls of other code
from types import FrameType
from typing import Any, TypeVar

from groupwise.scoring.reward_call import Failure

Answer = TypeVar("Answer")

GRACE = 10.0
"""Seconds from the signal until the process ends."""
FRAMES = 3
"""Innermost stack frames to show of a call that hangs."""


class Overdue(KeyboardInterrupt):
    """The deadline of a call has passed; raised in the call, it ends whatever Ctrl-C would end.

    Neither `except Exception` nor an event loop catches it.
    """


def within_deadline(function: Callable[[], Answer], *, who: str, deadline: float) -> Answer:
    """Call a function in the main thread. Raises Failure if it takes longer than the deadline.

    who: the name of the call, for the message if the process must end.
    """
    watchdog = _Watchdog(who, deadline)
    # It is final: the interrupted code may have left anything half done, so the run cannot go on.
    failure = Failure(
        f"did not answer within {deadline:g} s (set a higher `deadline` if it is only slow)",
        is_final=True,
    )
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
        raise failure from error
    if watchdog.is_overdue:  # the call caught the exception
        raise failure
    return answer


class _Watchdog:
    """Watches one call, in a thread of its own."""

    active: "_Watchdog | None" = None

    def __init__(self, who: str, deadline: float) -> None:
        self.who, self.deadline = who, deadline
        self.is_overdue, self._over = False, threading.Event()
        self._ending = threading.Lock()
        self._signal = _free_signal()

    def begin(self) -> None:
        if self._signal is not None:
            # Never reset: by the default handler a late signal would end the process.
            signal.signal(self._signal, _interrupt)
        _Watchdog.active = self
        _last_resort(self.deadline + 2 * GRACE)
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def end(self) -> None:
        """May be called twice, since the signal may interrupt the first call."""
        _Watchdog.active = None
        with self._ending:  # so that no signal is sent after this returns
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
                f"\n{self.who} did not answer within {self.deadline:g} s and cannot be "
                f"interrupted:\n{''.join(where)}The run ends here; its last checkpoint is intact. "
                f"With `isolate: true` a reward is called in a process that can be killed.",
                file=sys.__stderr__,
                flush=True,
            )
        finally:  # even where a reward has closed stderr
            _exit(1)


def _interrupt(_: int, __: FrameType | None) -> None:
    if _Watchdog.active is not None:
        _Watchdog.active = None
        raise Overdue


def _free_signal() -> Any:
    """A signal without a handler; None on systems where threads cannot be signalled."""
    if not hasattr(signal, "pthread_kill"):
        return None
    numbers: list[Any] = [signal.SIGUSR2, signal.SIGUSR1]
    if hasattr(signal, "SIGRTMAX"):
        numbers = [*range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1), *numbers]
    ours = (signal.SIG_DFL, _interrupt)
    free = (number for number in numbers if signal.getsignal(number) in ours)
    return next(free, None)


def _last_resort(seconds: float) -> None:
    """Have faulthandler print the stack and end the process after that time, unless cancelled."""
    if sys.__stderr__ is not None and not sys.__stderr__.closed:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
