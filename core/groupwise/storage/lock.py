"""FolderLock: a lock of a folder against other processes: a file in it, which names the process."""

import datetime as dt
import json
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from groupwise.kit import terminal
from groupwise.kit.errors import UserError
from groupwise.storage.disk import readable_record, reason, write_text
from groupwise.storage.files import LOCK


class FolderLock:
    """Held while a process writes to the folder; its file names that process, or the last one.

    shown: the folder as the user named it; patience: seconds to wait for another process.
    """

    def __init__(self, folder: Path, shown: Path, *, patience: float = 0) -> None:
        self.path, self.shown, self.patience = folder / LOCK, shown, patience
        self._locks: list[FileLock] = []
        self._locked: os.stat_result | None = None

    def acquire(self) -> None:
        """Raises UserError if another process has it, or the folder is not writable."""
        lock = FileLock(self.path, timeout=0)
        try:
            try:
                lock.acquire()
            except Timeout:
                if not self.patience:
                    raise
                terminal.say(f"note: {self._in_use}: waiting up to {self.patience:g} s")
                lock.acquire(timeout=self.patience)
            self._locks.append(lock)
            now = dt.datetime.now().astimezone().isoformat(timespec="seconds")
            holder = {"process": os.getpid(), "host": socket.gethostname(), "since": now}
            write_text(self.path, json.dumps(holder) + "\n")
            self._locked = self.path.stat()
        except Timeout as error:
            raise UserError(
                f"{self._in_use}: wait for it to end, stop it, or choose another folder by "
                f"output=FOLDER"
            ) from error
        except OSError as error:
            raise UserError(f"output: cannot write to {self.shown}: {reason(error)}") from error

    def release(self) -> None:
        for lock in self._locks:
            lock.release()

    @property
    def is_held(self) -> bool:
        """Whether the file in the folder is still the one that was locked."""
        try:
            there = self.path.stat()
        except OSError:
            return False
        return self._locked is not None and os.path.samestat(there, self._locked)

    @property
    def is_taken(self) -> bool:
        """Whether another process has locked the folder, after the file was removed."""
        return self.path.exists() and not self.is_held

    @property
    def holder(self) -> str:
        """ " by process 12 on host, since ...", if that is known."""
        holder = readable_record(self.path)
        if not {"process", "host", "since"} <= holder.keys():
            return ""
        return f" by process {holder['process']} on {holder['host']}, since {holder['since']}"

    @property
    def _in_use(self) -> str:
        return f"{self.shown} is in use{self.holder}"
