"""Live: the state of runs that may still go on, and the version of the page that shows them."""

import hashlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from groupwise.storage.disk import read_record
from groupwise.storage.files import AFTER, BEFORE, CONFIG, LOCK, METRICS, RESULT, RUN_INFO
from groupwise_report.wording import text

SHOWN = (METRICS, RESULT, CONFIG, RUN_INFO, BEFORE, AFTER)
"""The files that a page is made of; the version changes with them."""


@dataclass(frozen=True)
class Live:
    """The state of the runs of a served page.

    version: changes with the files of the runs; sentence: says whether runs go on; over: no run
    goes on.
    """

    version: str
    sentence: str
    over: bool

    @property
    def line(self) -> str:
        """The sentence as HTML, and a hidden one that the page shows if it loses its server."""
        follows = "" if self.over else " This page follows it."
        lost = "The server of this page does not answer: it shows what was last received."
        return (
            f'<p class="live{" over" if self.over else ""}">{text(self.sentence)}{follows}</p>'
            f'<p class="warning lost" hidden>{lost}</p>'
        )


def live(runs: Sequence[Path]) -> Live:
    """The present state of these runs, read from their folders."""
    states = [_state(run) for run in runs]
    active = sum(not over for over, _ in states)
    sentence = states[0][1]
    if len(runs) > 1:
        sentence = f"{active} of {len(runs)} runs go on." if active else "All runs have ended."
    stamps = [[_stamp(run / name) for name in SHOWN] for run in runs]
    version = hashlib.sha256(repr([states, stamps]).encode()).hexdigest()[:16]
    return Live(f'"{version}"', sentence, not active)


def _state(run: Path) -> tuple[bool, str]:
    """Whether the run is over, and a sentence that says so.

    If the result is older than the metrics, the run was resumed after that result.
    """
    (result, _), (metrics, _) = _stamp(run / RESULT), _stamp(run / METRICS)
    if result and result >= metrics:
        return True, "The run was interrupted." if _interrupted(run) else "The run has ended."
    if _is_alive(run / LOCK):
        return False, "The run goes on." if metrics else "The run is about to begin."
    return True, "The run was interrupted: no process works on it."


def _interrupted(run: Path) -> bool:
    try:
        return bool(read_record(run / RESULT).get("interrupted"))
    except ValueError:
        return False


def _stamp(path: Path) -> tuple[int, int]:
    """When a file was last written, in ns, and its size in bytes; zeros if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


def _is_alive(lock: Path) -> bool:
    """Whether the process that wrote the lock is alive; on another machine it counts as alive."""
    try:
        holder = read_record(lock)
        if holder["host"] == socket.gethostname():
            os.kill(int(holder["process"]), 0)
    except PermissionError:  # it is alive, and another user's
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True
