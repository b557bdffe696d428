"""Limits: what one program may use."""

from dataclasses import dataclass

WALL_FACTOR = 5
"""Wall time over processor time: a busy machine slows a program down, and is not its fault."""
WAITING_FACTOR = 3
"""Time in which a program waits for a processor does not count, up to so many times the wall time:
with less than a twentieth of a processor nothing is known of it."""

PERIOD = 0.05
"""Seconds between two looks at the size of a folder, where the kernel does not bound it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one program may use; each run of a program is held to it by itself."""

    seconds: float = 10.0
    """Processor time, of all its threads together."""
    memory: int = 512 << 20
    """Bytes of address space, beside those of the interpreter itself."""
    output: int = 1 << 20
    """Bytes of what it prints; a program that prints more is ended."""

    def __post_init__(self) -> None:
        for name in ("seconds", "memory", "output"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected more than 0, found {getattr(self, name)}")

    @property
    def wall_seconds(self) -> float:
        """The last resort: for programs that sleep, or wait for what never comes."""
        return self.seconds * WALL_FACTOR
