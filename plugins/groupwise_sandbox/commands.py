"""Commands: programs of the machine, such as compilers, run by a sandbox inside bubblewrap."""

import base64
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from groupwise_sandbox import bubblewrap
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.process import Finished, Process, SandboxError
from groupwise_sandbox.system_calls import Scope


class BubblewrapError(SandboxError):
    """Bubblewrap ended before the command began."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A program of `/usr` with its arguments, and what it finds in its folder."""

    arguments: Sequence[str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By names without a folder; all may be executed."""
    stdin: str = ""
    space: int = 0
    """Bytes that its folder may hold, these files among them; 0: it may write nothing."""
    scope: Scope = "files"
    base: int = 0
    """Bytes of memory beside `Limits.memory`, for an interpreter itself."""
    reserve: int = 32 << 20
    """Bytes of address space beside these, for what is read from files, or only reserved."""
    stack: int = 64 << 20
    """Bytes of the first thread's stack, and by default of each other one's."""

    def payload(self, limits: Limits) -> dict[str, Any]:
        """What bubblewrap is started with; `seconds` and `memory` are sent with it."""
        return {
            "mode": "command",
            "bubblewrap": shutil.which(bubblewrap.PROGRAM),
            "command": [*self.arguments],
            "files": {name: base64.b64encode(data).decode() for name, data in self.files.items()},
            "stdin": self.stdin,
            "space": self.space,
            "scope": self.scope,
            "base": self.base,
            "reserve": self.reserve,
            "stack": self.stack,
            "whole_seconds": math.ceil(limits.seconds),
        }


PROBE = Command(
    arguments=(
        *("/bin/sh", "-c"),
        "[ -e /etc/passwd ] || [ -e /proc/self ] || [ -e /home ] && exit 1\n"
        "for place in / /usr/ /dev/ /work/; do echo x 2>&- > ${place}x && exit 2; done\n"
        "echo contained\n"
        "(echo forked)",
    )
)
"""Prints one word where nothing of the machine is seen, and neither files nor processes are made."""


def missing() -> str | None:
    """What has to be installed before commands can be run, in a sentence; None: nothing."""
    if shutil.which(bubblewrap.PROGRAM) is None:
        return "only bubblewrap can hold it: install the package bubblewrap"
    if not os.path.exists(bubblewrap.LIMITER):
        return f"{bubblewrap.LIMITER} is missing: install the package util-linux"
    return None


def ending(process: Process) -> Finished:
    """How a command ended, which bubblewrap says. Raises SandboxError where it never began."""
    finished = process.finished()
    said = [*iter(process.message, None)]
    if any("exit-code" in each for each in said) or finished.ended != "exit":
        # As a shell does, bubblewrap adds 128 to the number of a signal.
        if finished.ended == "exit" and finished.status > 128:
            return replace(finished, ended="signal", status=128 - finished.status)
        return finished
    raise BubblewrapError(finished.stderr.strip()[-300:] or finished.why)
