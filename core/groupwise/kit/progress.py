"""Progress: what a run is doing now, counted where the work is done, for whoever watches it.

A sampler, a policy or a reward whose calls take long may count what it has done:
`progress.count("tokens", 64)`. It is shown on the terminal, and changes nothing in a run.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Phase:
    """A phase of the current task: counts by what is counted, and how many are expected.

    early: counted by the part that does the work, before the core sees its result.
    """

    name: str
    expected: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    early: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.since = time.monotonic()

    def __str__(self) -> str:
        whats = dict.fromkeys([*self.expected, *self.counts, *self.early])
        return ", ".join(filter(None, [self.name, *map(self._counted, whats)]))

    def _counted(self, what: str) -> str:
        done, of = max(self.counts.get(what, 0), self.early.get(what, 0)), self.expected.get(what)
        if of is None:
            return f"{done:,} {what if done != 1 else what.removesuffix('s')}"
        return f"{min(done, of):,} of {of:,} {what}"


class Progress:
    """A task, and the phase of it that goes on. Counts of a phase go on where it is entered again.

    title: of the task.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.start("")

    def start(self, title: str) -> None:
        """Begin another task: all phases are new."""
        self.title, self.began = title, time.monotonic()
        self._phases: dict[str, Phase] = {}
        self._open = [Phase("")]

    @property
    def phase(self) -> Phase:
        return self._open[-1]

    @contextmanager
    def doing(self, name: str) -> Iterator[None]:
        """A phase of the task. Phases inside it are shown in its place."""
        phases, opened = self._phases, self._open
        opened.append(phases.setdefault(name, Phase(name)))
        try:
            yield
        finally:
            opened.pop()

    def expect(self, what: str, more: int) -> None:
        """So many more will be counted in this phase."""
        with self._lock:
            expected = self.phase.expected
            expected[what] = expected.get(what, 0) + more

    def count(self, what: str, more: int = 1, *, early: bool = False) -> None:
        """So many more are done; early: the core will count them, too, when it has them."""
        with self._lock:
            counts = self.phase.early if early else self.phase.counts
            counts[what] = counts.get(what, 0) + more

    def __str__(self) -> str:
        return ": ".join(filter(None, [self.title, str(self.phase)]))

    @property
    def seconds(self) -> float:
        """How long the phase goes on."""
        return time.monotonic() - max(self.phase.since, self.began)


_progress = Progress()
start, doing, expect, count = (
    _progress.start,
    _progress.doing,
    _progress.expect,
    _progress.count,
)


def current() -> Progress:
    """The progress of this process."""
    return _progress
