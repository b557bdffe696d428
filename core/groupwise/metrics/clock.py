"""Clock: the time of a step by phase."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from groupwise.kit import progress
from groupwise.kit.metric_names import Family

SHOWN = {"sample": "sampling", "reward": "rewards", "update": "update", "evaluate": ""}
"""By phase, its name on the terminal; an evaluation is the task itself."""


@dataclass
class Clock:
    """Seconds that the current step has spent in each phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        with progress.doing(SHOWN[phase]):
            yield
        spent = time.perf_counter() - started
        self.seconds[phase] = self.seconds.get(phase, 0.0) + spent

    def take(self) -> dict[str, float]:
        """The seconds as metrics; resets the clock."""
        taken = {f"{Family.TIME}/{phase}": spent for phase, spent in self.seconds.items()}
        self.seconds = {}
        return taken
