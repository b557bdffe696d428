"""Cache: answers on disk, by a hash of what was asked; safe with several processes and runs."""

import json
import sqlite3
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

from filelock import FileLock

from groupwise.kit import foreign_json, terminal
from groupwise.kit.errors import first_line

PATIENCE = 30.0
"""Seconds to wait while another process writes."""
_TABLE = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT) WITHOUT ROWID"


def key_of(request: Any) -> str:
    """The hash of a request: JSON values, whatever the order of their keys."""
    return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


class Cache:
    """JSON values by key, in an SQLite file or, without one, in memory.

    The file has a write-ahead log, so that processes read while one writes. Of two processes that
    store an answer to the same question at the same time the first is kept, and both use it.
    A file that fails during a run, as on a full disk, costs what it would have saved and no more.
    """

    def __init__(self, path: str | None) -> None:
        self.path = None if path is None else Path(path).expanduser()
        self._connection: sqlite3.Connection | None = None
        self._lock, self._has_failed = Lock(), False

    def open(self) -> None:
        """Open or create the file; ValueError if that is not possible."""
        with self._lock:
            self._opened()

    def get(self, key: str) -> Any:
        """The value of a key, None if there is none. One that is no JSON, as in a damaged file, is
        removed."""
        row = self._row("SELECT CAST(answer AS BLOB) FROM answers WHERE key = ?", (key,))
        if row is None:
            return None
        try:
            return foreign_json.read(row[0])
        except (TypeError, ValueError):
            self.remove(key)
            return None

    def remove(self, key: str) -> None:
        """Remove a key and its value, if there are any."""
        self._row("DELETE FROM answers WHERE key = ?", (key,))

    def put(self, key: str, value: Any) -> Any:
        """Store a value; returns the one that is stored, which may be another process's, and the
        value itself if none can be."""
        self._row("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, json.dumps(value)))
        stored = self.get(key)
        return value if stored is None else stored

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _row(self, statement: str, values: tuple[str, ...]) -> Any:
        """The first row of a statement's result; None, with a note once, if it fails."""
        with self._lock:
            connection = self._opened()
            try:
                return connection.execute(statement, values).fetchone()
            except sqlite3.Error as error:
                if not self._has_failed:
                    terminal.say(
                        f"note: the cache {str(self.path)!r} fails ({first_line(error)}); answers "
                        f"count all the same, and those that it cannot keep are asked for again"
                    )
                self._has_failed = True
                return None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                self._connection = self._new()
            except (OSError, sqlite3.Error) as error:
                raise ValueError(
                    f"cache {str(self.path)!r} cannot be used as a file of answers: {error}; name "
                    f"another file, or set cache: null"
                ) from error
        return self._connection

    def _new(self) -> sqlite3.Connection:
        if self.path is None:
            return _prepared(":memory:")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Two processes that begin a log at the same time do not wait for each other by themselves.
        with FileLock(f"{self.path}.lock", timeout=PATIENCE):
            return _prepared(self.path)


def _prepared(path: Path | str) -> sqlite3.Connection:
    """A connection to the table. A statement is a transaction; calls come from the thread of
    rewards and from the main one."""
    connection = sqlite3.connect(
        path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(_TABLE)
    except sqlite3.Error:
        connection.close()
        raise
    return connection
