"""Runs a command of groupwise that is killed, or finds the disk full, at a chosen touch.

    python victim.py COUNT AT WHAT COMMAND ...

A touch is whatever changes the disk in the run's folder: a file opened for writing, a rename, a
removal, a folder made; and for weights, which are not written by Python, before and amidst. COUNT
is a file for how many there were, AT the number of the touch (0 for none), WHAT `kill` or `full`.
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
"""Events that change the disk, and how many of their first arguments are paths."""
MAKES = ("open", "os.mkdir", "weights")
"""Those that need space."""


class Watch:
    """Counts touches in a folder; at one of them the process is killed, or the disk is full."""

    def __init__(self, folder: str, at: int, what: str) -> None:
        self.folder, self.at, self.what, self.count = folder, at, what, 0
        sys.addaudithook(self.hook)
        serialize = safetensors.torch.serialize_file

        def weights(tensors: Any, path: Any, **options: Any) -> None:
            self.touch("weights", path)
            serialize(tensors, path, **options)
            if self.at == self.count + 1:  # amidst: half of it is on the disk
                os.truncate(path, Path(path).stat().st_size // 2)
            self.touch("weights", path)

        safetensors.torch.serialize_file = weights

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if writes and isinstance(path, str | bytes | os.PathLike):
                self.touch(event, path)
        elif event in PATHS:
            # rmtree removes by names relative to a folder that it holds open.
            relative = event in ("os.remove", "os.rmdir") and arguments[1] >= 0
            if relative or any(self.within(path) for path in arguments[: PATHS[event]]):
                self.touch(event, self.folder)

    def within(self, path: Any) -> bool:
        return str(Path(os.fsdecode(path)).absolute()).startswith(self.folder)

    def touch(self, event: str, path: Any) -> None:
        if not self.within(path):
            return
        self.count += 1
        if not self.at or self.count < self.at:
            return
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif event in MAKES:
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
