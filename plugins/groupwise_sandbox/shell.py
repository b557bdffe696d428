"""Shell: commands of one folder, one after the other, each in namespaces of its own."""

import base64
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from groupwise_sandbox.commands import Command, ending
from groupwise_sandbox.connection import Connection
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.memory import taken
from groupwise_sandbox.process import Ended, Finished, Process, SandboxError
from groupwise_sandbox.shell_folder import FOLDERS, PLACE
from groupwise_sandbox.tree import Tree, name_of, of_tar

SHELL = "/bin/bash"
ALWAYS_READABLE = ("/etc/alternatives", "/etc/ld.so.cache")
"""Where programs of `/usr` are linked to, and by which libraries are found."""
LONGEST = 100_000
"""Bytes of a command; the kernel takes 128 KiB."""
ENTRIES = 4096
"""The most files and folders, as the kernel counts them."""
_MERGED = 'exec "$1" -c "$2" 2>&1'
_VARIABLES = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "TMPDIR": "/tmp"}

_PROBES = (
    "echo kept > file; (setsid sleep 1000 &); echo x > /usr/x; kill -9 -1; echo $?",
    "[ -e /etc/passwd ] || [ -e /proc/self ] || kill -0 -1 2>/dev/null && exit 1; cat file",
)
"""Commands; the second prints one word where the first has left a file and nothing else."""


class CommandError(ValueError):
    """A text is no command for a shell; says why."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the commands of a shell find."""

    files: Tree = field(default_factory=dict)
    """By their names in the folder; those that begin with `#!` may be executed."""
    space: int = 64 << 20
    """Bytes that its files may take, temporary ones among them."""
    temporary: Tree = field(default_factory=dict)
    """Those in `/tmp`, by their names there."""
    links: Mapping[str, str] = field(default_factory=dict)
    """By paths, other paths that they stand for."""
    readable: tuple[str, ...] = ()
    """Paths of the machine that commands may read besides `/usr`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of their environment."""

    def __post_init__(self) -> None:
        for name in (*self.files, *self.temporary):
            name_of(name)  # which raises
        if sum(map(len, (*self.files.values(), *self.temporary.values()))) > self.space:
            raise ValueError(f"files of more than {self.space} bytes, which a shell's folder has")


class Shell:
    """Runs commands in a folder whose files stay from one to the next.

    A command has namespaces of its own: it sees the folder, `/tmp`, and `/usr`, and when it ends so
    does all that it has started. `Limits.memory` is of each of its processes, and of all together.
    Its methods may be called in any thread, and wait for each other.
    """

    def __init__(
        self,
        connection: Connection,
        setting: Setting,
        limits: Limits,
        free: AbstractContextManager[object],
    ) -> None:
        """connection: to the process that holds the folder.
        free: entered while a command runs.
        """
        self._connection, self._setting, self._limits = connection, setting, limits
        self._free, self._lock = free, threading.Lock()

    def run(self, command: str, seconds: float | None = None, *, stdin: str = "") -> Finished:
        """Run a command by bash; what it prints, errors among them, is `stdout`.

        seconds: of processor time, of each of its processes; five times as much passes at most.

        Raises CommandError for a text that is none, and SandboxError.
        """
        check_command(command)
        limits = replace(self._limits, seconds=seconds or self._limits.seconds)
        return self._run(("/bin/sh", "-c", _MERGED, "sh", SHELL, command), limits, stdin)

    def files(self) -> dict[str, bytes]:
        """All files of the folder by their names; of links only the names that lead to a file.

        Raises ValueError where they are more than the folder's size together, as sparse files may
        be, and SandboxError.
        """
        output = self._setting.space + ENTRIES * 2048
        limits = replace(self._limits, output=output)
        finished = self._run(("tar", "--format=gnu", "-c", "."), limits)
        if finished.ended != "exit" or finished.status != 0:
            raise ValueError(f"the files cannot be read: tar {finished.why}")
        return of_tar(finished.stdout)

    def _run(self, arguments: tuple[str, ...], limits: Limits, stdin: str = "") -> Finished:
        command = Command(
            arguments=arguments,
            stdin=stdin,
            space=self._setting.space,
            scope="shell",
            readable=(*ALWAYS_READABLE, *self._setting.readable),
            links=self._setting.links,
            variables={**_VARIABLES, **self._setting.variables},
            place=PLACE,
        )
        payload, running = command.payload(limits), list[Process]()

        def look() -> Ended | None:
            first = running[0].first if running else None
            return "memory" if first and taken(first) > limits.memory else None

        with self._lock, self._free, self._connection.started(payload, limits, look) as process:
            running.append(process)
            return ending(process)


@contextmanager
def opened(
    server: Connection,
    setting: Setting,
    limits: Limits,
    free: AbstractContextManager[object],
) -> Iterator[Shell]:
    """A shell, which ends with the block, and with the server. Raises SandboxError."""
    trees = {FOLDERS[0]: setting.files, FOLDERS[1]: setting.temporary}
    files = {
        f"{folder}/{name}": base64.b64encode(data).decode()
        for folder, tree in trees.items()
        for name, data in tree.items()
    }
    payload = {"mode": "shell", "space": setting.space, "files": files}
    with server.started(payload, limits) as holder:
        own = Connection()
        try:
            holder.hand_over(own.theirs)
            if not own.wait_until_ready():
                raise SandboxError(f"a shell could not be begun: {holder.finished().why}")
            yield Shell(own, setting, limits, free)
        finally:
            own.close()


def uncontained(shell: Callable[[], AbstractContextManager[Shell]]) -> str | None:
    """Why a shell does not hold its commands on this machine, in a sentence, or None."""
    try:
        with shell() as tried:
            *_, finished = [tried.run(each) for each in _PROBES]
        words = None if finished.stdout == b"kept\n" else finished.why
    except SandboxError as error:
        words = str(error)
    return words and (
        f"a shell does not hold here ({words}); allow namespaces of users in namespaces of users, "
        "or run this on a machine that has them"
    )


def check_command(text: str) -> None:
    """Raises CommandError for a text that no process can be given."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise CommandError("it has a half of a surrogate pair, which is no character") from None
    if "\0" in text:
        raise CommandError("it has a NUL, which no program takes")
    if size > LONGEST:
        raise CommandError(f"it has {size:,} bytes, at most {LONGEST:,} are taken")
