"""Sleep: servers that share GPUs with training are awake only while some process samples."""

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock

from groupwise_llm.vllm.files import Files
from groupwise_llm.vllm.server import Server


class Sleep:
    """Counts the processes that sample, in a file beside the weights. A collective would not do:
    processes sample different numbers of times."""

    def __init__(self, transfer: Files) -> None:
        self.transfer = transfer
        self._lock = FileLock(transfer.home / "drawing.lock")
        self._file = transfer.home / "drawing"

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """The context in which a process samples. After an error, servers are left as they are."""
        with self._lock:
            if self._count(1) == 1:
                self.wake()
        yield
        with self._lock:
            if self._count(-1) == 0:
                self.transfer.fleet.each(Server.sleep)

    def wake(self) -> None:
        self.transfer.fleet.each(Server.wake)

    def _count(self, change: int) -> int:
        before = int(self._file.read_text()) if self._file.exists() else 0
        self._file.write_text(str(before + change))
        return before + change
