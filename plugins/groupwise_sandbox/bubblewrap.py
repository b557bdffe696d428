"""Bubblewrap: what a process becomes that runs a command in namespaces of its own.

The command sees a read-only `/usr`, an empty rest, and its files in `/folder`. It has no network,
no `/proc`, no process but its own, and no variable of the environment but three.
"""

import base64
import fcntl
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from groupwise_sandbox import system_calls

FOLDER = "/folder"
"""The folder of the command's files, in which it begins."""
PROGRAM, LIMITER = "bwrap", "/usr/bin/prlimit"
PATHS = "/usr/local/bin:/usr/bin:/bin"
"""Where programs are looked for: what a namespace shows."""
ENVIRONMENT = {"PATH": PATHS, "LC_ALL": "C.UTF-8", "HOME": FOLDER}
PROCESSES = 64
"""The most of a command, threads among them."""
_DESCRIPTORS = 128
_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
_DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")


def become(payload: Mapping[str, Any], status: int) -> NoReturn:
    """Replace this process by bubblewrap with the payload's command.

    status: the descriptor on which bubblewrap says how the command ended, which no command gets.
    """
    os.set_inheritable(status, False)  # it is passed on once, as a number of bubblewrap's own
    arguments = [*_view(payload, status), "--", *_limited(payload), *payload["command"]]
    os.execve(payload["bubblewrap"], [PROGRAM, *arguments], ENVIRONMENT | payload["variables"])


def _view(payload: Mapping[str, Any], status: int) -> Iterator[str]:
    """Arguments of bubblewrap, which mounts in their order."""
    # The command is the namespace's first process, so that its processor time is counted.
    yield from ("--unshare-all", "--unshare-user", "--as-pid-1", "--die-with-parent")
    yield "--new-session"  # a signal to the group of processes leaves the namespace otherwise
    yield from ("--json-status-fd", str(fcntl.fcntl(status, fcntl.F_DUPFD, 16)))
    yield from ("--ro-bind", "/usr", "/usr")
    for each in map(Path, _SYSTEM):
        if each.is_symlink():
            yield from ("--symlink", str(each.readlink()), str(each))
        elif each.is_dir():
            yield from ("--ro-bind", str(each), str(each))
    for path, other in payload["links"].items():
        yield from ("--symlink", other, path)
    for device in _DEVICES:
        yield from ("--dev-bind", device, device)
    yield from (
        "--perms",
        "0444",
        "--file",
        _held(payload["stdin"].encode("utf-8", "surrogatepass")),
        "/dev/stdin",
    )
    if place := payload["place"]:
        yield from ("--bind", place + FOLDER, FOLDER, "--bind", f"{place}/tmp", "/tmp")
    elif payload["space"]:
        yield from ("--perms", "0700", "--size", str(payload["space"]), "--tmpfs", FOLDER)
    else:
        yield from ("--dir", FOLDER)
    for path in payload["readable"]:  # after /tmp, in which an environment may lie
        yield from ("--ro-bind-try", path, path)
    for name, content in payload["files"].items():
        held = _held(base64.b64decode(content))
        yield from ("--perms", "0555", "--file", held, f"{FOLDER}/{name}")
    # What is not the work is a file system in memory, too, and without a bound of its own.
    yield from ("--remount-ro", "/", "--chdir", FOLDER)
    yield from ("--seccomp", _held(system_calls.program(payload["scope"])))


def _held(content: bytes) -> str:
    """A descriptor to read this from, which only bubblewrap gets."""
    descriptor = os.memfd_create("held", 0)
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return str(descriptor)


def _limited(payload: Mapping[str, Any]) -> Sequence[str]:
    """The command by which the payload's command is held to its limits.

    They hold inside the namespace of users alone: there processes are counted by themselves.
    """
    limits = {
        # The hard one alone, since the first process of a namespace may ignore other signals.
        "cpu": payload["whole_seconds"] + 1,
        "as": payload["memory"] + payload["base"] + payload["reserve"],
        "data": payload["memory"] + payload["base"],
        "stack": payload["stack"],
        "fsize": payload["space"],
        "nofile": _DESCRIPTORS,
        "nproc": PROCESSES,
        "memlock": 0,
        "core": 0,
    }
    held = [
        f"--{name}={_lower(name, value)}:{_lower(name, value)}" for name, value in limits.items()
    ]
    return (LIMITER, *held)


def _lower(name: str, value: int) -> int:
    """This, or the limit that this process is held to already."""
    present = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    return value if present == resource.RLIM_INFINITY else min(value, present)
