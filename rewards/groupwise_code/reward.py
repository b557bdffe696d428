"""code_tests: whether a program passes its tests, which are run outside of it."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from math import nan
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from groupwise.kit import terminal
from groupwise.kit.errors import UserError
from groupwise.rewards import SampleErrors, seconds_left
from groupwise_code.answer import Answer, answer_of
from groupwise_code.formats import FORMATS, OTHERS, cases_of, language_of, supported
from groupwise_code.machine import LAST, SHARE, Here, Machine
from groupwise_code.problem import (
    Case,
    FormatError,
    Language,
    Printing,
    Problem,
    count,
    passed,
)
from groupwise_code.running import failures
from groupwise_code.solution import SOLUTIONS, solution_of
from groupwise_messages.completion import judged_texts
from groupwise_sandbox.languages import is_natural
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.process import SandboxError
from groupwise_sandbox.programs import CompileError
from groupwise_sandbox.sandbox import Sandbox

SERVER_PARALLEL = 16
"""Programs at the same time on a server."""


class Verdict(NamedTuple):
    """Of the tests on a program."""

    value: float
    failed: str | None
    """The numbers of the tests that it failed, and why it failed the first."""


class CodeTests:
    """1.0 if a program passes all tests of its row, else 0.0; or the share that it passes.

    The program is the completion's last fenced block. It runs in a sandbox, where it can reach no
    file of the machine, process or network; what is expected is never in its process, and tests
    that are code run in another one, which it reaches by plain data alone. So a program is paid for
    what it answers, and for nothing else that it does.

    What a program causes (time, memory, a crash) is 0; where the sandbox itself fails the sample
    failed, and has no gradient. `solutions` of a row, if it has them, are tried before a run.
    """

    judges = True
    required_columns: ClassVar = {"": tuple(FORMATS)}

    class Config(BaseModel):
        """Settings of the reward `code_tests`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        pay: Literal["all", "share"] = Field(
            default="all",
            description="For all tests of a row together, or for the share that passes.",
        )
        tests: Literal["all", "gold"] = Field(
            default="all",
            description="All tests of a row, or those that its own solution passes, where it has "
            "one.",
        )
        most: int | None = Field(
            default=None, ge=1, description="Only so many tests of a row, the first ones."
        )
        timeout: float = Field(
            default=10.0,
            gt=0,
            description="Most processor time of a program for one test, in seconds; five times as "
            "much wall time.",
        )
        memory: int = Field(
            default=512, ge=16, description="Most memory of a program for one test, in MiB."
        )
        parallel: int | None = Field(
            default=None,
            ge=1,
            description="Programs at the same time; by default one for each processor, and 16 on "
            "a server.",
        )
        total_memory: int | None = Field(
            default=None,
            ge=32,
            description="Most memory of all programs together, in MiB, at least twice `memory`; by "
            "default half of what is free. Fewer run at the same time where it is little.",
        )
        languages: tuple[Language, ...] = Field(
            default=("python",),
            min_length=1,
            description="Languages of programs that print, where a row names none; the fence of a "
            "block says which, and without a name it is the first. All but Python need bubblewrap.",
        )
        modules: tuple[str, ...] = Field(
            default=(),
            description="Modules that programs may import besides the standard library's, such as "
            "numpy.",
        )
        server: str | None = Field(
            default=None,
            pattern=r"^https?://[^/\s]+",
            description="Address of a server of SandboxFusion's protocol, such as "
            "http://localhost:8080, which runs programs instead of this machine; `timeout` is then "
            "wall time.",
        )
        retries: int = Field(
            default=3, ge=0, description="How often a request that failed is repeated."
        )
        language: str | None = Field(
            default=None,
            min_length=1,
            description="Column that says which language a row's programs are in; by default "
            "`language`, in which a natural language is ignored.",
        )

    def __init__(self, config: Config | None = None) -> None:
        """Raises UserError where there is no sandbox on this machine, ValueError for an option."""
        self.config = config or self.Config()
        self._machine = _machine(self.config)
        self._is_noted = False

    def check_row(self, row: Mapping[str, Any]) -> None:
        """Raises ValueError for a row whose tests cannot be read, or not run here."""
        self._problem(row)

    def gold_completion(self, row: Mapping[str, Any]) -> str | None:
        """Returns the data set's own solution, where a row has one."""
        solution = solution_of(row, self._problem(row).languages)
        return None if solution is None else f"```{solution.language}\n{solution.code}\n```"

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_extra: Callable[[str, Sequence[Any]], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors where the sandbox failed."""
        names = (*FORMATS, *OTHERS, *SOLUTIONS, self.config.language or "language")
        known = {name: columns[name] for name in names if name in columns}
        known["prompt"] = [each if isinstance(each, str) else None for each in prompts]
        rows = [
            {name: values[i] for name, values in known.items()} for i in range(len(completions))
        ]
        left = seconds_left()
        until = time.monotonic() + SHARE * left
        with self._machine.ending(LAST * left), ThreadPoolExecutor(self._machine.parallel) as pool:
            # Tasks begin in order, so none waits for tests that no thread is left to read; and the
            # tests of a group, which may be large, are let go of with its last completion.
            tried = list[Future[Verdict]]()
            for index, text in enumerate(judged_texts(completions, columns)):
                if index == 0 or rows[index] != rows[index - 1]:
                    tests = pool.submit(self._tests, rows[index], until)
                tried.append(pool.submit(self._tried, text, tests, until))
        values, reasons = list[float](), dict[int, str]()
        failed = list[str | None]()
        for index, each in enumerate(tried):
            try:
                verdict = each.result()
            except (SandboxError, ValueError) as error:  # the machine's fault, or the row's
                verdict = Verdict(nan, None)
                of = "failed in its sandbox: " if isinstance(error, SandboxError) else ""
                reasons[index] = f"{of}{error}"
            values.append(verdict.value)
            failed.append(verdict.failed)
        if log_extra is not None:
            log_extra("failed_tests", failed)
        if reasons:
            raise SampleErrors(values, reasons)
        return list(values)

    def close(self) -> None:
        """Ends what runs."""
        self._machine.close()

    def _problem(self, row: Mapping[str, Any]) -> Problem:
        """Raises FormatError."""
        cases = cases_of(row)[: self.config.most]
        for refused in filter(None, map(self._machine.refused, cases)):
            raise FormatError(refused)
        languages = self._languages(row)
        if not all(isinstance(each, Printing) for each in cases):
            if "python" not in languages:
                raise FormatError("tests that call a function need a program in Python")
            languages = ["python"]
        for language in languages:
            if (reason := self._machine.refusal(language)) is not None:
                raise FormatError(reason)
        return Problem(cases, languages)

    def _languages(self, row: Mapping[str, Any]) -> Sequence[str]:
        """Raises FormatError."""
        column = self.config.language
        name = language_of(row, column or "language")
        if column is None and name is not None and is_natural(name):
            if not self._is_noted:
                self._is_noted = True
                terminal.say(
                    f"note: code_tests: {name!r} in the column 'language' is not a programming "
                    f"language, and is ignored; if it is one, set `language: language`"
                )
            return self.config.languages
        return self.config.languages if name is None else [supported(name)]

    def _tests(self, row: Mapping[str, Any], until: float) -> Problem:
        """The problem with the cases that count. Raises FormatError and SandboxError."""
        problem = self._problem(row)
        gold = solution_of(row, problem.languages)
        if self.config.tests == "all" or gold is None:
            return problem
        try:
            program = self._program(gold, until)
        except CompileError as error:
            raise FormatError(f"the row's own solution {error}") from error
        tried = [passed(each, self._failures(program, each, until)) for each in problem.cases]
        right = [each for each in tried if each is not None]
        if not right:
            raise FormatError("the row's own solution passes none of its tests")
        return replace(problem, cases=right)

    def _tried(self, text: str, tests: Future[Problem], until: float) -> Verdict:
        """Raises FormatError and SandboxError."""
        problem = tests.result()
        answer = answer_of(text, problem.languages)
        if answer is None:
            return Verdict(0.0, "no program")
        try:
            program = self._program(answer, until)
        except CompileError as error:
            return Verdict(0.0, str(error))
        reasons = list[str | None]()
        for case in problem.cases:
            reasons += self._failures(program, case, until)
            if self.config.pay == "all" and any(reasons):
                break
        total = sum(map(count, problem.cases))
        wrong = {number: reason for number, reason in enumerate(reasons, 1) if reason is not None}
        if not wrong:
            return Verdict(1.0, None)
        failed = f"{', '.join(map(str, wrong))} of {total}: {next(iter(wrong.values()))}"
        return Verdict(0.0 if self.config.pay == "all" else (total - len(wrong)) / total, failed)

    def _program(self, answer: Answer, until: float) -> Any:
        """Raises CompileError and SandboxError."""
        _check_time(until)
        return self._machine.program(answer)

    def _failures(self, program: Any, case: Case, until: float) -> Sequence[str | None]:
        _check_time(until)
        return failures(self._machine, program, case, lambda: until - time.monotonic())


def _machine(config: CodeTests.Config) -> Machine:
    """Raises UserError where there is no sandbox on this machine, ValueError for an option."""
    limits = Limits(seconds=config.timeout, memory=config.memory << 20)
    if config.server is not None:
        try:
            from groupwise_code.remote import Remote
        except ModuleNotFoundError as error:
            raise UserError(f"server needs httpx: pip install 'httpx>=0.27' ({error})") from error
        parallel = config.parallel or SERVER_PARALLEL
        return Remote(config.server, limits, parallel=parallel, retries=config.retries)
    total = config.total_memory
    try:
        sandbox = Sandbox(
            limits=limits,
            parallel=config.parallel,
            total_memory=None if total is None else total << 20,
            modules=config.modules,
        )
    except UserError as error:
        raise UserError(f"{error}; or name a server that runs programs: `server`") from error
    return Here(sandbox)


def _check_time(until: float) -> None:
    if time.monotonic() > until:
        raise SandboxError("the call's time was up before all tests were begun")
