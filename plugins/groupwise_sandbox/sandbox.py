"""Sandbox: runs programs, each in a process that can reach nothing."""

import base64
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Self

from groupwise.kit.errors import UserError
from groupwise_sandbox import plain, system_calls
from groupwise_sandbox.commands import PROBE, BubblewrapError, Command, ending, missing
from groupwise_sandbox.connection import Launched
from groupwise_sandbox.exchange import answered, calls, defined, passed_on
from groupwise_sandbox.folder import PROBE as PROBE_OF_FOLDERS
from groupwise_sandbox.folder import Folder, Way, Ways, made
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.memory import runs_within
from groupwise_sandbox.process import Ended, Finished, Process, SandboxError
from groupwise_sandbox.server import LEFT_OUT
from groupwise_sandbox.shell import Setting, Shell, opened, uncontained
from groupwise_sandbox.tree import Tree, modules_of


@dataclass(frozen=True, kw_only=True)
class Called:
    """What a call of a function of a program gave."""

    finished: Finished
    value: Any = None
    """Plain data, if there is no error."""
    error: str | None = None
    """Why there is no value: an exception, a value that is not plain data, or the end."""


@dataclass(frozen=True, kw_only=True)
class Tested:
    """The verdict of tests on a program."""

    reasons: Sequence[str | None]
    """Of each test: why it failed, None where it passed."""
    finished: Finished
    """How the program ended, rather than the tests."""

    @property
    def passed(self) -> bool:
        return not any(self.reasons)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests that are code. Every name of `stubs` stands in them for what a program defines; values
    cross as plain data or stay where they are, so that a test never holds an object of the program.
    """

    code: str
    calls: Sequence[str] = ()
    """Statements that are run one by one after `code`; each is a test, whatever becomes of those
    before. Without any, `code` is itself the only one."""
    stubs: Sequence[str]
    classes: Sequence[str] = ()
    """Those of `stubs` that are classes, whose objects the tests use; without any, the program's
    objects do not reach the tests."""
    exceptions: Sequence[str] = ()
    """Those of `stubs` that are classes of exceptions."""
    space: int = 0
    """Bytes of the folder of the tests, and of the program's; 0: they have none. What arguments
    name of the tests' files is in the program's folder, too, and what the program changes of these,
    or makes besides, goes back."""
    files: Tree = field(default_factory=dict)
    """What is in the program's folder from the beginning, which the tests do not see."""


class Sandbox:
    """Runs programs, several at a time; its methods may be called in any thread.

    Each program is a process of its own with limits of its own, so what becomes of it does not
    depend on which others run.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        parallel: int | None = None,
        total_memory: int | None = None,
        modules: Sequence[str] = (),
    ) -> None:
        """limits: of one program.
        parallel: runs at the same time; by default one for each processor. Fewer run where more
            could take more than `total_memory`.
        total_memory: bytes of all runs together; by default half of what is free now. A run of
            tests that are code is two processes.
        modules: those that programs may import besides the standard library's, such as numpy.

        Raises ValueError where `total_memory` is too little for one run, and UserError where no
        kernel can hold a program to a list of system calls.
        """
        if not system_calls.is_supported():
            raise UserError(
                "a sandbox needs Linux on x86-64 or aarch64, whose kernel refuses system calls; "
                "take such a machine, or leave out what runs code"
            )
        self.limits, self._modules = limits or Limits(), tuple(modules)
        wanted = parallel or len(os.sched_getaffinity(0))
        self.parallel = min(wanted, runs_within(total_memory, self.limits.memory))
        self._free = threading.BoundedSemaphore(self.parallel)
        self._lock, self._trying = threading.Lock(), threading.Lock()
        self._connection: Launched | None = None
        self._ways = Ways(self._probed)
        self._tried: tuple[str | None] | None = None
        """Whether commands can be run: the reason against it, once it is known."""
        self._tried_shell: tuple[str | None] | None = None

    @property
    def modules(self) -> AbstractSet[str]:
        """The modules that programs may import, without what is below them."""
        return sys.stdlib_module_names - LEFT_OUT | {*self._modules}

    def run(
        self,
        code: str,
        stdin: str = "",
        *,
        arguments: Sequence[str] = (),
        files: Mapping[str, str] | None = None,
        space: int = 0,
    ) -> Finished:
        """Run a program with this standard input. Raises SandboxError.

        arguments: after the first of `sys.argv`.
        files: contents by name of what it may open to read; they are in its memory, not on a disk.
        space: bytes of the folder in which it begins; 0: it has none.
        """
        inputs = {"stdin": stdin, "arguments": [*arguments], "files": {**(files or {})}}
        payload = {"mode": "program", "code": code, **inputs}
        with self._started(payload, space=space) as (process,):
            return process.finished()

    def call(self, code: str, name: str, arguments: Sequence[Any], *, opening: str = "") -> Called:
        """Run code, then call a function that it defines with plain data. Raises SandboxError.

        name: of the function, or "Class.method" of a class that is built without arguments; a
            function may also be a method of a class `Solution`.
        opening: code whose names the program may use, such as imports.
        """
        encoded = [plain.encoded(each) for each in arguments]
        request = {"do": "call", "args": [{"name": name}, *encoded], "named": {}}
        with self._started(calls(code, opening, refers=False)) as (process,):
            answer = defined(process) or answered(process, request)
            process.hang_up()
            finished = process.finished()
        error = answer.get("error")
        if error is None and finished.ended != "exit":
            error = finished.why
        if error is not None:
            return Called(finished=finished, error=str(error))
        try:
            return Called(finished=finished, value=plain.decoded(answer.get("value")))
        except plain.NotPlainError as problem:
            return Called(finished=finished, error=str(problem))

    def test(self, code: str, tests: Suite) -> Tested:
        """Run tests that are code, in a process of their own. Raises SandboxError.

        Raises NotPlainError, a ValueError, where an argument of a test cannot cross.
        """
        initial = {name: base64.b64encode(data).decode() for name, data in tests.files.items()}
        testing = {"mode": "tests", **asdict(replace(tests, files={}))}
        program = calls(code, refers=True)
        program |= {"initial": initial, "modules": sorted(modules_of(tests.files))}
        both = (program, testing)
        with self._started(*both, space=tests.space) as (answering, tester):
            failed = defined(answering)
            verdict = failed or passed_on(tester, answering)
            answering.hang_up()
            finished = answering.finished()
            if not failed and "error" in verdict:
                tester.finished()  # raises SandboxError where the machine held it up
        if "refused" in verdict:
            raise plain.NotPlainError(verdict["refused"])
        if (reasons := verdict.get("reasons")) is None:
            reasons = [str(verdict["error"])] * max(1, len(tests.calls))
        return Tested(reasons=reasons, finished=finished)

    @property
    def folder_refusal(self) -> str | None:
        """Why no program can have a folder on this machine, in a sentence, or None."""
        return self._ways.refusal

    @contextmanager
    def _started(
        self, *payloads: Mapping[str, Any], space: int = 0, way: Way | None = None
    ) -> Iterator[Sequence[Process]]:
        """Processes of one run; each has a folder of so many bytes, if there are any.

        Raises SandboxError.
        """
        if space and (way := way or self._ways.way) is None:
            raise SandboxError(str(self._ways.refusal))
        with self._free, ExitStack() as stack:
            folders = list[Folder]()
            if way is not None:
                folders = [stack.enter_context(made(way, space)) for _ in payloads]
                payloads = tuple(
                    {**payload, "folder": folder.payload()}
                    for payload, folder in zip(payloads, folders, strict=True)
                )
            # Each watches the folders of all, since one may write while another is waited for.
            look = partial(_full, folders) if folders else None
            connection = self._connected()
            yield [
                stack.enter_context(connection.started(each, self.limits, look))
                for each in payloads
            ]

    def _probed(self, way: Way) -> Finished:
        payload = {"mode": "program", "code": PROBE_OF_FOLDERS}
        with self._started(payload, space=1 << 20, way=way) as (process,):
            return process.finished()

    def command(self, command: Command, limits: Limits | None = None) -> Finished:
        """Run a program of the machine in namespaces of its own. Raises SandboxError.

        limits: instead of the sandbox's.
        """
        if (reason := self.refusal) is not None:
            raise SandboxError(f"a command cannot be run here: {reason}")
        return self._commanded(command, limits or self.limits)

    @property
    def refusal(self) -> str | None:
        """Why no command can be run on this machine, in a sentence, or None; it is tried once.

        Raises SandboxError if the sandbox's server fails.
        """
        with self._trying:
            if self._tried is None:
                self._tried = (missing() or self._uncontained(),)
            return self._tried[0]

    def shell(self, setting: Setting | None = None) -> AbstractContextManager[Shell]:
        """A shell with a folder of its own, until the block is left. Raises SandboxError."""
        return opened(self._connected(), setting or Setting(), self.limits, self._free)

    @property
    def shell_refusal(self) -> str | None:
        """Why no shell can be had on this machine, in a sentence, or None; it is tried once."""
        if (reason := self.refusal) is not None:
            return reason
        with self._trying:
            if self._tried_shell is None:
                self._tried_shell = (uncontained(self.shell),)
            return self._tried_shell[0]

    def _uncontained(self) -> str | None:
        try:
            finished = self._commanded(PROBE, self.limits)
            words = None if finished.stdout == b"contained\n" else finished.why
        except BubblewrapError as error:
            words = str(error)
        return words and (
            f"bubblewrap does not hold here ({words}); allow namespaces of users, or run this on "
            "a machine that has them"
        )

    def _commanded(self, command: Command, limits: Limits) -> Finished:
        payload = command.payload(limits)
        with self._free, self._connected().started(payload, limits) as process:
            return ending(process)

    @contextmanager
    def ending(self, seconds: float) -> Iterator[None]:
        """End after so many seconds what still runs in the block; it raises SandboxError then."""
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self.close)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        """End all programs, and what starts them."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connected(self) -> Launched:
        with self._lock:
            if self._connection is not None and self._connection.is_lost:
                self._connection.close()
                self._connection = None
            if self._connection is None:
                self._connection = Launched(self._modules)
            return self._connection


def _full(folders: Sequence[Folder]) -> Ended | None:
    return "space" if any(each.is_full() for each in folders) else None
