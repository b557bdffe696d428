"""Memory: how much of it all programs together may take."""

from contextlib import suppress
from pathlib import Path
from resource import getpagesize

import psutil

PROCESSES = 2
"""The most processes of one run: the program, and tests that are code."""
_GROUP = Path("/sys/fs/cgroup")


def runs_within(total: int | None, memory: int) -> int:
    """How many runs at the same time keep within `total` bytes; at least one.

    total: None: half of what is free now; memory: bytes that each process may take.
    Raises ValueError where `total` is set, and too little for one run.
    """
    one = PROCESSES * memory
    if total is not None and total < one:
        raise ValueError(
            f"total_memory: expected at least {one} bytes, {PROCESSES} processes of {memory}, "
            f"found {total}"
        )
    return max(1, (free() // 2 if total is None else total) // one)


def free(group: Path = _GROUP) -> int:
    """Bytes that this machine, or the container that limits this process, has left."""
    left = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # no cgroup v2, or "max"
        limit, used = (
            int((group / name).read_text(encoding="ascii"))
            for name in ("memory.max", "memory.current")
        )
        left = min(left, max(0, limit - used))
    return left


def taken(process: int) -> int:
    """Bytes of a process and of all that it has started and are there, without what is shared."""
    pages, pending = 0, [process]
    while pending:
        place = Path("/proc", str(pending.pop()))
        with suppress(OSError, ValueError):  # it has ended
            _, resident, shared, *_ = (place / "statm").read_text(encoding="ascii").split()
            pages += int(resident) - int(shared)
            for each in (place / "task").glob("*/children"):
                pending += map(int, each.read_text(encoding="ascii").split())
    return pages * getpagesize()
