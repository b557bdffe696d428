"""Home: a run's own folder of weights, which a later run removes once nobody holds its lock."""

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from uuid import uuid4

from filelock import FileLock

from groupwise.kit import terminal
from groupwise.kit.errors import first_line

MEMORY = Path("/dev/shm")
PREFIX = f"groupwise-{socket.gethostname()}-"
NO_LOCK = (OSError, NotImplementedError)
"""What locking raises where files cannot be locked, such as on NFS without a lock daemon."""


class Home:
    """The lock, a file beside the folder, is held until `close` or the end of this process.

    It decides which folders are of killed runs. Numbers of processes cannot: another container that
    shares this memory counts its own, and may have the same host name.
    """

    def __init__(self, parent: str | None) -> None:
        """Make a folder, and remove those of killed runs on this host. Raises OSError.

        Where files cannot be locked, the folder has no lock, so no later run removes it.

        parent: where; None for `MEMORY`.
        """
        if parent is None:
            parent = str(MEMORY if MEMORY.is_dir() else gettempdir())
        place = Path(parent).resolve(strict=True)  # a lock would make missing folders
        for path in place.glob(f"{PREFIX}*.lock"):
            _remove_if_free(path)
        self.folder = place / f"{PREFIX}{uuid4().hex}"
        # Locked first: a folder exists only as long as its lock was held or its run is dead.
        self.lock = FileLock(_lock_of(self.folder), thread_local=False)
        note = ""
        try:
            self.lock.acquire()
        except NO_LOCK as error:
            with suppress(OSError):
                _lock_of(self.folder).unlink()
            note = f"note: {place} cannot lock files ({first_line(error)}): if this run is killed, "
        self.folder.mkdir(mode=0o700)
        if note:
            terminal.say(f"{note}remove {self.folder} yourself")

    def close(self) -> None:
        """Remove the folder."""
        _remove(self.folder)
        self.lock.release()


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """A context for one process at a time, by a lock file; for all where it cannot be locked."""
    lock = FileLock(path)
    with suppress(*NO_LOCK):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove_if_free(path: Path) -> None:
    lock = FileLock(path, timeout=0)
    with suppress(*NO_LOCK), lock:  # or it is held, or of another user
        _remove(path.with_suffix(""))


def _remove(folder: Path) -> None:
    """Remove a folder, and then the lock, which this process holds."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        _lock_of(folder).unlink(missing_ok=True)
