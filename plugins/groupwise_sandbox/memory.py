"""Memory: how much of it all programs together may take."""

from contextlib import suppress
from pathlib import Path

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
