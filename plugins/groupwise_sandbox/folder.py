"""Folder: a process of the sandbox may use files in one of its own, of a bounded size."""

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from groupwise_sandbox import landlock
from groupwise_sandbox.confinement import NOBODY
from groupwise_sandbox.process import Finished, SandboxError
from groupwise_sandbox.view import FOLDER

Way: TypeAlias = Literal["namespaces", "landlock"]
"""How a process is held to its folder: in namespaces, where the folder is a file system in memory,
or by Landlock, where it is a temporary folder whose size is looked at again and again."""
WAYS: tuple[Way, ...] = ("namespaces", "landlock")
"""In the order in which they are tried."""
ENTRIES = 4096
"""The most files and folders in it."""
PROBE = """
import os
name = os.path.join(os.getcwd(), "file")
with open(name, "w") as file:
    file.write("contained")
for place in ("/etc/passwd", "/proc/self/status", "/usr/x", "../x"):
    try:
        open(place, "w" if place[-1] == "x" else "r")
    except OSError:
        continue
    raise SystemExit(f"{place} can be opened")
print(open(name).read())
"""
"""A program that prints one word where it can use its folder and nothing besides."""


@dataclass(frozen=True)
class Folder:
    """One that was made for a process."""

    way: Way
    space: int
    """The most bytes in it."""
    root: str = ""
    """Under Landlock: the temporary folder of the machine in which it lies, alone."""

    def payload(self) -> dict[str, Any]:
        """What a process is told of it."""
        return {"way": self.way, "space": self.space, "root": self.root}

    def is_full(self) -> bool:
        """Whether it holds more than it may, where the kernel does not see to it."""
        if self.way == "namespaces":
            return False
        left, entries, pending = self.space, ENTRIES, [self.root + FOLDER]
        while pending:
            try:
                with os.scandir(pending.pop()) as found:
                    for each in found:
                        entries -= 1
                        left -= each.stat(follow_symlinks=False).st_blocks * 512
                        if left < 0 or entries < 0:
                            return True
                        if each.is_dir(follow_symlinks=False):
                            pending.append(each.path)
            except FileNotFoundError:  # removed while it is looked at
                continue
            except OSError:  # nested too deeply to be named
                return True
        return False


@contextmanager
def made(way: Way, space: int) -> Iterator[Folder]:
    """A folder for a process, removed where the block is left."""
    if way == "namespaces":
        yield Folder(way, space)
        return
    root = tempfile.mkdtemp(prefix="groupwise-")
    try:
        for path in (root, root + FOLDER):
            Path(path).mkdir(mode=0o700, exist_ok=True)
            if os.getuid() == 0:
                with suppress(OSError):  # there is nobody, and the process will say so
                    shutil.chown(path, NOBODY, NOBODY)
        yield Folder(way, space, root)
    finally:
        # Python's own removal recurses, and a folder may be nested deeper than it can.
        subprocess.run(["rm", "-rf", "--", root], check=False, stderr=subprocess.DEVNULL)


class Ways:
    """Which way holds on this machine; it is tried once, with a program."""

    def __init__(self, run: Callable[[Way], Finished], ways: Sequence[Way] = WAYS) -> None:
        """run: runs `PROBE` in a folder that is made in a way; raises SandboxError."""
        self._run, self._ways, self._lock = run, ways, threading.Lock()
        self._tried: tuple[Way | None, str] | None = None

    @property
    def way(self) -> Way | None:
        """The first that holds."""
        return self._result()[0]

    @property
    def refusal(self) -> str | None:
        """Why none does, in a sentence, or None."""
        way, words = self._result()
        if way is not None:
            return None
        return (
            f"no process can be held to a folder here ({words}); allow namespaces of users, or "
            "take a kernel with Landlock"
        )

    def _result(self) -> tuple[Way | None, str]:
        with self._lock:
            if self._tried is None:
                self._tried = self._try()
            return self._tried

    def _try(self) -> tuple[Way | None, str]:
        failures = list[str]()
        for way in self._ways:
            if way == "landlock" and landlock.version() == 0:
                failures.append("landlock: there is none")
                continue
            try:
                finished = self._run(way)
            except SandboxError as error:
                failures.append(f"{way}: {error}")
                continue
            if finished.stdout == b"contained\n":
                return way, ""
            failures.append(f"{way}: a program that was tried {finished.why}")
        return None, "; ".join(failures)
