"""Programs: of C, C++ and JavaScript, compiled once and run on many inputs."""

import shutil
import threading
from dataclasses import dataclass

from groupwise_sandbox import bubblewrap
from groupwise_sandbox.commands import BubblewrapError, Command
from groupwise_sandbox.languages import LANGUAGES, Language
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.process import Finished
from groupwise_sandbox.sandbox import Sandbox

COMPILING = Limits(seconds=10, memory=1 << 30, output=32 << 20)
"""What a compiler may use; it prints the program."""


@dataclass(frozen=True)
class Program:
    """One that can be run."""

    language: Language
    content: bytes
    """What the compiler made, or the source."""


class CompileError(ValueError):
    """A program cannot be compiled; says why, after the words "the program"."""


class Programs:
    """Compiles and runs programs in a sandbox. Its methods may be called in any thread."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox, self._lock = sandbox, threading.Lock()
        self._refusals = dict[str, str | None]()

    def refusal(self, name: str) -> str | None:
        """Why programs of a language of `LANGUAGES` cannot be run here, in a sentence, or None.

        It is tried once, with a program. Raises SandboxError if the sandbox itself fails.
        """
        with self._lock:
            if name not in self._refusals:
                self._refusals[name] = self._refused(name)
            return self._refusals[name]

    def compiled(self, name: str, code: str) -> Program:
        """A program of this code. Raises CompileError and SandboxError."""
        language = LANGUAGES[name]
        source = code.encode("utf-8", "replace")
        if not language.compiling:
            return Program(language, source)
        command = Command(
            arguments=("/bin/sh", "-c", f"{language.compiling} && exec cat program"),
            files={language.source: source},
            space=4 * COMPILING.output,
            scope="processes",
        )
        finished = self._sandbox.command(command, COMPILING)
        if finished.ended != "exit":
            raise CompileError(f"is not compiled: the compiler {finished.why}")
        if finished.status != 0:
            errors = [line for line in finished.stderr.splitlines() if "error" in line]
            raise CompileError(f"does not compile: {(errors or [finished.stderr])[0][:200]}")
        return Program(language, finished.stdout)

    def run(self, program: Program, stdin: str) -> Finished:
        """Run a program with this standard input. Raises SandboxError."""
        language, memory = program.language, self._sandbox.limits.memory >> 20
        running = [each.format(memory=memory) for each in language.running]
        name = "program" if language.compiling else language.source
        command = Command(
            arguments=[*running, f"{bubblewrap.FOLDER}/{name}"],
            files={name: program.content},
            stdin=stdin,
            base=language.base,
            reserve=language.reserve,
            stack=language.stack,
        )
        return self._sandbox.command(command)

    def _refused(self, name: str) -> str | None:
        language = LANGUAGES[name]
        cannot = f"a program in {language.title} cannot be run here"
        if (reason := self._sandbox.refusal) is not None:
            return f"{cannot}: {reason}"
        if shutil.which(language.tool, path=bubblewrap.PATHS) is None:
            return f"{cannot}: install the package {language.package}"
        try:
            finished = self.run(self.compiled(name, language.probe), "41")
        except CompileError as error:
            return f"{cannot}: one that was tried {error}"
        except BubblewrapError as error:  # an old one, without an option that is needed
            return f"{cannot}: {error}"
        if finished.stdout.strip() != b"42" or finished.status != 0:
            return f"{cannot}: one that was tried {finished.why}"
        return None
