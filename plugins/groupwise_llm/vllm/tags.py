"""Tags: the names of the weights that servers were sent in this run, in order."""

import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class Tags:
    """Tells which weights may have drawn a completion, and with which requests still run.

    last: the tag of the weights that all servers have; "" before they were sent any.
    """

    def __init__(self) -> None:
        self._running, self._lock = Counter[str](), threading.Lock()
        self._versions: dict[str, int] = {}
        self._places: dict[str, int] = {}
        self.last = ""

    def begin(self, tag: str, version: int) -> None:
        """From now on servers may draw with these weights, too."""
        self._versions[tag], self._places[tag] = version, len(self._places)

    def finish(self, tag: str) -> None:
        """All servers have them."""
        self.last = tag

    @contextmanager
    def used(self) -> Iterator[str]:
        """The context of a request, with the last tag."""
        with self._lock:
            tag = self.last
            self._running[tag] += 1
        try:
            yield tag
        finally:
            with self._lock:
                self._running[tag] -= 1

    @property
    def in_use(self) -> set[str]:
        """With which requests of this process may run, or begin to."""
        with self._lock:
            return {self.last, *(tag for tag, count in self._running.items() if count)}

    def version(self, tag: str) -> int:
        return self._versions[tag]

    def may_draw(self, tags: Collection[str], since: str) -> bool:
        """Whether all are of this run, and none older than `since`, the last one at a request."""
        least = self._places[since]
        return bool(tags) and all(self._places.get(tag, -1) >= least for tag in tags)
