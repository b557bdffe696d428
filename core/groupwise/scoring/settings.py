"""Settings of the process that a reward may change, and which the run relies on."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from groupwise.scoring.forks import ending_forks
from groupwise.scoring.reward_call import Failure

try:
    import resource
except ImportError:  # Windows
    LIMITS: dict[str, int] = {}
else:
    LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}

ENDING = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)]
"""Signals that end a run; a reward may keep its handlers of others."""


def _folder() -> Path | None:
    with suppress(FileNotFoundError):  # it was removed
        return Path.cwd()
    return None


def _set_folder(folder: Path | None) -> None:
    """The folder may have been moved or removed by somebody else meanwhile."""
    if folder is not None and folder.is_dir():
        os.chdir(folder)


def _set_limit(number: int, wanted: tuple[int, int]) -> None:
    """A limit that was raised stays: the files that were opened since may need it."""
    both = [*resource.getrlimit(number), *wanted]
    now, hard_now, soft, hard = (
        float("inf") if limit == resource.RLIM_INFINITY else limit for limit in both
    )
    if now < soft or hard_now < hard:
        resource.setrlimit(number, wanted)


def _set_device(device: torch.device) -> None:
    torch.set_default_device(None)  # any other one slows down every function of torch
    if torch.get_default_device() != device:
        torch.set_default_device(device)


def _has_alarm() -> bool:
    return hasattr(signal, "getitimer") and signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _set_alarm(wanted: bool) -> None:
    if not wanted:
        signal.setitimer(signal.ITIMER_REAL, 0)


Settings = Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]]
"""By name, a function that reads a setting, and one that sets what was read."""

OF_PROCESS: Settings = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the working directory": (_folder, _set_folder),
    **{
        f"the limit {name}": (partial(resource.getrlimit, number), partial(_set_limit, number))
        for name, number in LIMITS.items()
    },
}
OF_MAIN_THREAD: Settings = {
    "torch's default device": (torch.get_default_device, _set_device),
    "the alarm": (_has_alarm, _set_alarm),
    **{
        f"the handler of {n.name}": (partial(signal.getsignal, n), partial(signal.signal, n))
        for n in ENDING
    },
}


class SavedSettings:
    """Settings as they are now; `restore` sets those again that have changed since."""

    def __init__(self, settings: Settings) -> None:
        self._kept = [(name, read(), read, write) for name, (read, write) in settings.items()]

    def restore(self) -> None:
        """Raises a final Failure if a setting cannot be restored, such as a hard limit."""
        for name, value, read, write in self._kept:
            if read() == value:
                continue
            try:
                write(value)
            except (OSError, TypeError, ValueError) as error:
                raise Failure(
                    f"changed {name} of the run's process, which cannot be undone: {error}",
                    is_final=True,
                ) from error


@contextmanager
def contained() -> Iterator[None]:
    """A context in the main thread for code of a reward: at its end all settings are as before, and
    a process that was forked in it ends there."""
    kept = SavedSettings({**OF_PROCESS, **OF_MAIN_THREAD})
    try:
        with ending_forks():
            yield
    finally:
        kept.restore()
