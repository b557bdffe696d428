"""Commands: programs of the machine, such as compilers, run by a sandbox inside bubblewrap."""

import base64
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
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
    readable: Sequence[str] = ()
    """Paths of the machine that it sees besides, if they are there, and may read."""
    links: Mapping[str, str] = field(default_factory=dict)
    """By paths that it sees, other ones that they stand for."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of its environment, besides three."""
    place: str = ""
    """Where the folder of a shell is, in whose namespaces it is run, instead of one of its own."""

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
            "readable": [*self.readable],
            "links": {**self.links},
            "variables": {**self.variables},
            "place": self.place,
            "whole_seconds": math.ceil(limits.seconds),
        }


_PROBE = """
[ -e /etc/passwd ] || [ -e /proc/self ] || [ -e /home ] && exit 1
for place in / /usr/ /dev/ /folder/; do echo x 2>&- > ${place}x && exit 2; done
echo contained
(echo forked)
"""
PROBE = Command(arguments=("/bin/sh", "-c", _PROBE))
"""Prints one word where it sees nothing of the machine, and makes neither files nor processes."""


def missing() -> str | None:
    """What has to be installed before commands can be run, in a sentence; None: nothing."""
    if shutil.which(bubblewrap.PROGRAM) is None:
        return "install the package bubblewrap"
    if not Path(bubblewrap.LIMITER).exists():
        return "install the package util-linux"
    return None


def ending(process: Process) -> Finished:
    """How a command ended, which bubblewrap says. Raises SandboxError where it never began."""
    finished = process.finished()
    messages = [*iter(process.message, None)]
    if any("exit-code" in each for each in messages) or finished.ended != "exit":
        # As a shell does, bubblewrap adds 128 to the number of a signal.
        if finished.ended == "exit" and finished.status > 128:
            return replace(finished, ended="signal", status=128 - finished.status)
        return finished
    raise BubblewrapError(finished.stderr.strip()[-300:] or finished.why)
