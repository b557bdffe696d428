"""Runs a command of groupwise that is killed, or finds the disk full, at a chosen operation.

    python victim.py COUNT AT WHAT COMMAND ...

Counted are operations that change the folder of the run: opening a file for writing, renaming,
removing, making a folder; and writing weights, which is not done by Python, before and halfway.
COUNT: a file for the number of operations; AT: the number of the chosen one (0 for none); WHAT:
`kill` or `full`.
"""

import contextlib
import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

import safetensors.torch

from groupwise.cli import app

PATHS = {"os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1}
"""Audit events that change the disk: the number of their first arguments that are paths."""
NEED_SPACE = ("open", "os.mkdir", "weights")
"""Events that need free space."""


class Watch:
    """Counts operations in a folder; at number `at` it kills the process or reports a full disk."""

    def __init__(self, folder: str, at: int, what: str) -> None:
        self.folder, self.at, self.what, self.count = folder, at, what, 0
        sys.addaudithook(self.hook)
        serialize = safetensors.torch.serialize_file

        def weights(tensors: Any, path: Any, **options: Any) -> None:
            self.count_operation("weights", path)
            serialize(tensors, path, **options)
            if self.at == self.count + 1:  # halfway: half of the file is on the disk
                os.truncate(path, Path(path).stat().st_size // 2)
            self.count_operation("weights", path)

        safetensors.torch.serialize_file = weights

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if writes and isinstance(path, str | bytes | os.PathLike):
                self.count_operation(event, path)
        elif event in PATHS:
            # rmtree uses names relative to an open folder.
            relative = event in ("os.remove", "os.rmdir") and arguments[1] >= 0
            if relative or any(self.within(path) for path in arguments[: PATHS[event]]):
                self.count_operation(event, self.folder)

    def within(self, path: Any) -> bool:
        return str(Path(os.fsdecode(path)).absolute()).startswith(self.folder)

    def count_operation(self, event: str, path: Any) -> None:
        if not self.within(path):
            return
        self.count += 1
        if not self.at or self.count < self.at:
            return
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif event in NEED_SPACE:
            raise OSError(errno.ENOSPC, "No space left on device", os.fsdecode(path))


def main(count: str, at: str, what: str, *command: str) -> None:
    watch = Watch(str(Path("run").absolute()), int(at), what)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            app([*command])
    finally:
        Path(count).write_text(str(watch.count))


if __name__ == "__main__":
    main(*sys.argv[1:])
