"""Descendants: the processes that a process has started, and those which these have.

Run as a program, it starts a command and ends it with all of its descendants, also those in another
session (`setsid`), when the command ends or the descriptor of its first argument does. It imports
the standard library alone, since it is started for each episode of an agent.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
"""Of Linux's prctl.h."""
PATIENCE = 5.0
"""Seconds in which killed processes, and what they had just started, must be gone."""


def adopt_orphans() -> None:
    """From now on descendants whose parent has ended are children of this process, so that they can
    be found; on Linux, elsewhere nothing changes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants(process: int) -> None:
    """Kill all descendants of a process that adopts orphans, until there are none."""
    until = time.monotonic() + PATIENCE
    while (living := _descendants(process)) and time.monotonic() < until:
        for each in living:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.002)


def _descendants(process: int) -> list[int]:
    """Those that have not ended; where there is no /proc, none is known."""
    children: dict[int, list[int]] = {}
    ended = set[int]()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in brackets may have brackets and spaces.
            state, parent = file.read_bytes().rpartition(b")")[2].split()[:2]
            own = int(file.parent.name)
            children.setdefault(int(parent), []).append(own)
            if state in (b"Z", b"X"):
                ended.add(own)
    all_, queue = list[int](), [process]
    while queue:
        of_one = children.get(queue.pop(), [])
        all_ += of_one
        queue += of_one
    return [each for each in all_ if each not in ended]


def _run(descriptor: int, command: Sequence[str]) -> int:
    """The exit code of a command, after all of it has ended."""
    os.set_inheritable(descriptor, False)
    adopt_orphans()
    threading.Thread(target=_end_with, args=(descriptor,), daemon=True).start()
    process = os.posix_spawnp(command[0], [*command], os.environ)
    ended, status = os.wait()
    while ended != process:  # an orphan
        ended, status = os.wait()
    kill_descendants(os.getpid())
    return os.waitstatus_to_exitcode(status)


def _end_with(descriptor: int) -> None:
    os.read(descriptor, 1)
    kill_descendants(os.getpid())
    os._exit(1)


if __name__ == "__main__":
    code = _run(int(sys.argv[1]), sys.argv[2:])
    if code < 0:  # by a signal, and so does this process
        os.kill(os.getpid(), -code)
    sys.exit(code)
