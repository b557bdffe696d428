"""Runs groupwise in forked processes; each is killed, or finds the disk full, at a chosen touch.

A touch is whatever changes the disk in the run's folder: a file opened for writing, a rename, a
removal, a folder made; and for weights, which are not written by Python, before and amidst. Jobs
come as lines of JSON on stdin, and so do answers on stdout: a process that has imported everything
once and computed nothing can be forked at will.
"""

import contextlib
import errno
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import diffusers  # noqa: F401 (accelerate looks for it, which takes its time)
import safetensors.torch
import transformers  # noqa: F401

import groupwise.run  # noqa: F401
import groupwise_llm.policy  # noqa: F401
from groupwise.cli import app

PATHS = {"os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1}
"""Events that change the disk, and how many of their first arguments are paths."""
MAKES = ("open", "os.mkdir", "weights")
"""Those that need space."""


class Watch:
    """Counts touches in a folder; at one of them the process is killed, or the disk is full."""

    def __init__(self, folder: str, at: int | None, what: str) -> None:
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
        if self.at is None or self.count < self.at:
            return
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif event in MAKES:
            raise OSError(errno.ENOSPC, "No space left on device", os.fsdecode(path))


def run(job: dict[str, Any], answers: int) -> None:
    """In a process of its own: one command, and how often it touched the disk."""
    os.chdir(job["home"])
    with Path(job["terminal"]).open("w") as terminal:
        os.dup2(terminal.fileno(), 1)
        os.dup2(terminal.fileno(), 2)
    watch = Watch(str(Path(job["home"], "run")), job.get("at"), job.get("what", "kill"))
    code: Any = 0
    try:
        with contextlib.suppress(KeyboardInterrupt):
            app(job["command"])
    except SystemExit as leave:
        code = leave.code
    finally:
        os.write(answers, json.dumps({"touches": watch.count}).encode())
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


def main() -> None:
    for line in sys.stdin:
        mine, childs = os.pipe()
        if not (process := os.fork()):
            os.close(mine)
            try:
                run(json.loads(line), childs)
            except BaseException:
                import traceback

                traceback.print_exc()
            os._exit(70)
        os.close(childs)
        with open(mine, "rb") as pipe:  # noqa: PTH123 (of a descriptor)
            record = json.loads(pipe.read() or b"{}")
        _, status = os.waitpid(process, 0)
        print(json.dumps({**record, "exit": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
