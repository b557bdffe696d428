"""Live: what a page says of runs that go on, and by what it is known to be the newest."""

import hashlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from groupwise.report.wording import text
from groupwise.storage.disk import read_record
from groupwise.storage.run_folder import LOCK, RESULT

SHOWN = ("metrics.jsonl", RESULT, "config.yaml", "samples/before.jsonl", "samples/after.jsonl")
"""What a page is made of."""


@dataclass(frozen=True)
class Live:
    """A page that is served: `version` changes with it; `sentence` says whether runs go on.

    over: none of them does.
    """

    version: str
    sentence: str
    over: bool

    @property
    def line(self) -> str:
        """The sentence as HTML, and one that the page shows where it loses its server."""
        follows = "" if self.over else " This page follows it."
        lost = "The server of this page does not answer: it shows what was last received."
        return (
            f'<p class="live{" over" if self.over else ""}">{text(self.sentence)}{follows}</p>'
            f'<p class="warning lost" hidden>{lost}</p>'
        )


def live(runs: Sequence[Path]) -> Live:
    """What the folders of these runs say now."""
    states = [_state(run) for run in runs]
    going = sum(not over for over, _ in states)
    sentence = states[0][1]
    if len(runs) > 1:
        sentence = f"{going} of {len(runs)} runs go on." if going else "All runs have ended."
    facts = [states, [[_stamp(run / name) for name in SHOWN] for run in runs]]
    version = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return Live(f'"{version}"', sentence, not going)


def _state(run: Path) -> tuple[bool, str]:
    """Whether the run is over, and a sentence that says so.

    A result that is older than the metrics is that of a run which was resumed since.
    """
    (result, _), (metrics, _) = _stamp(run / RESULT), _stamp(run / "metrics.jsonl")
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
    """When a file was written last, in ns, and its bytes; zeros where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


def _is_alive(lock: Path) -> bool:
    """Whether the process that wrote the file is there; one of another machine is taken to be."""
    try:
        holder = read_record(lock)
        if holder["host"] == socket.gethostname():
            os.kill(int(holder["process"]), 0)
    except PermissionError:  # it is there, and somebody else's
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True
