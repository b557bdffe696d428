"""repository_tests: whether the files of an episode pass their row's hidden tests."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from groupwise.kit.errors import UserError
from groupwise.rewards import SampleErrors, seconds_left
from groupwise_code import together
from groupwise_code.assertions import SPACE, of_folder
from groupwise_code.machine import LAST, SHARE
from groupwise_code.problem import FormatError
from groupwise_sandbox.harbor import files_of, task_of
from groupwise_sandbox.interpreter import settings_of
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.process import SandboxError
from groupwise_sandbox.sandbox import Sandbox
from groupwise_sandbox.shell import Setting
from groupwise_sandbox.tree import Edits, Tree, edited, modules_of

Guarantee: TypeAlias = Literal["separated", "together"]
TOGETHER = ("FAIL_TO_PASS", "expected_output_json", "task")
COLUMNS = (
    *("files", "repo", "base_commit", "docker_image", "image_name", "tests", "test_files"),
    *("test_patch", "PASS_TO_PASS", *TOGETHER),
)
"""That a row may have."""
_PROGRAM = (
    "import os, sys\nsys.dont_write_bytecode = True\n"
    "sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), 'src')]\n"
)


class RepositoryTests:
    """1.0 if the files that an episode left pass all hidden tests of its row, else 0.0.

    With the guarantee `separated` the tests (`tests`) run in a process of their own and reach the
    files' modules by plain data alone, as those of `code_tests` do, so nothing but right answers is
    paid. `together` is for a repository's own tests (`FAIL_TO_PASS`), which pytest runs in one
    process with the files: there a program may forge its verdict.
    """

    judges = True
    required_columns: ClassVar = {"": ("tests", *TOGETHER)}

    class Config(BaseModel):
        """Settings of the reward `repository_tests`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        guarantee: Guarantee = Field(
            default="separated",
            description="`separated`: rows whose tests would run in one process with the files are "
            "refused; `together`: they are taken, too, though a program may forge their verdict.",
        )
        timeout: float = Field(
            default=30.0,
            gt=0,
            description="Processor time of the files' program, or of pytest, in seconds; wall time "
            "is five times as much.",
        )
        memory: int = Field(default=512, ge=16, description="Memory of each, in MiB.")
        modules: tuple[str, ...] = Field(
            default=(),
            description="With `separated`: modules that the files may import besides the standard "
            "library's, such as numpy.",
        )
        python: str | None = Field(
            default=None,
            description="With `together`: the path of the Python with pytest; by default /usr's.",
        )
        packages: tuple[str, ...] = Field(
            default=(),
            description="With `together`: folders that it imports from besides, such as an "
            "environment's site-packages.",
        )
        checkouts: str | None = Field(
            default=None,
            description="A folder with clones `owner__name`, for rows with `repo` and "
            "`base_commit` in place of `files`.",
        )
        parallel: int | None = Field(
            default=None, ge=1, description="Tests at the same time; by default one a processor."
        )

    def __init__(self, config: Config | None = None) -> None:
        """Raises UserError where there is no sandbox for these tests on this machine."""
        self.config = config or self.Config()
        self._sandbox = Sandbox(
            limits=Limits(seconds=self.config.timeout, memory=self.config.memory << 20),
            parallel=self.config.parallel,
            modules=self.config.modules,
        )
        self._setting = settings_of(self.config.python, self.config.packages)
        is_alone = self.config.guarantee == "separated"
        reason = self._sandbox.folder_refusal if is_alone else self._sandbox.shell_refusal
        if reason is not None:
            self._sandbox.close()
            raise UserError(f"the reward `repository_tests` cannot be used here: {reason}")

    def check_row(self, row: Mapping[str, Any]) -> None:
        """Raises ValueError for a row whose files or tests cannot be read, or not run here."""
        self._tests(row, files_of(row, self.config.checkouts))

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        edited: Sequence[Edits | None],
        log_extra: Callable[[str, Sequence[Any]], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each episode, None where it has no files; raises SampleErrors where
        the sandbox failed.

        edited: what became of the files, as the environment `repository` returns it.
        """
        names = [name for name in COLUMNS if name in columns]
        rows = [{name: columns[name][i] for name in names} for i in range(len(edited))]
        left = seconds_left()
        until = time.monotonic() + SHARE * left
        with self._sandbox.ending(LAST * left), ThreadPoolExecutor(self._sandbox.parallel) as pool:
            tried = [
                pool.submit(self._failed, row, edits, until)
                for row, edits in zip(rows, edited, strict=True)
            ]
        values, reasons, failed = list[float | None](), dict[int, str](), list[str | None]()
        for index, (edits, each) in enumerate(zip(edited, tried, strict=True)):
            try:
                failed.append(each.result())
                values.append(None if edits is None else float(failed[-1] is None))
            except (SandboxError, ValueError) as error:  # the machine's fault, or the row's
                reasons[index] = str(error)
                failed.append(None)
                values.append(nan)
        if log_extra is not None:
            log_extra("failed_tests", failed)
        if reasons:
            raise SampleErrors(values, reasons)
        return values

    def close(self) -> None:
        """Ends what runs."""
        self._sandbox.close()

    @cached_property
    def _without_pytest(self) -> str | None:
        """Why the Python of these tests cannot run them, or None; it is tried once."""
        with self._sandbox.shell(Setting(**self._setting)) as shell:
            tried = shell.run("python3 -P -c 'import pytest'")
        words = tried.stdout.decode("utf-8", "replace").strip()[-200:]
        return f"its Python has no pytest ({words}); set `python` or `packages`" if words else None

    def _failed(self, row: Mapping[str, Any], edits: Edits | None, until: float) -> str | None:
        """Which tests fail, and why the first. Raises FormatError, ValueError and SandboxError."""
        if edits is None:
            return None
        if time.monotonic() > until:
            raise SandboxError("the call's time was up before all tests were begun")
        before = files_of(row, self.config.checkouts)
        return self._tests(row, before)(edits)

    def _tests(self, row: Mapping[str, Any], before: Tree) -> Callable[[Edits], str | None]:
        """By what edits of these files are tried. Raises FormatError."""
        if row.get("tests"):
            return _Separated(self._sandbox, str(row["tests"]), before)
        if self.config.guarantee == "separated":
            raise FormatError(
                "its tests run in one process with the files, where a program may forge their "
                "verdict; set `guarantee: together` to accept that, or give tests as `tests`"
            )
        if row.get("task"):
            task, setting = task_of(Path(row["task"])), self._setting
            return lambda edits: together.task_failure(self._sandbox, task, edits, setting)
        tests = together.together_of(row)
        if self._without_pytest:
            raise FormatError(self._without_pytest)

        def try_together(edits: Edits) -> str | None:
            wrong = together.failures(self._sandbox, tests, before, edits, self._setting)
            return f"{len(wrong)} of {len(tests.expected)}: {wrong[0]}" if wrong else None

        return try_together


class _Separated:
    """Tests in a process of their own."""

    def __init__(self, sandbox: Sandbox, code: str, before: Tree) -> None:
        """Raises FormatError."""
        modules = modules_of(before)
        self._tests, imports = of_folder(code, modules)
        self._sandbox, self._before, self._program = sandbox, before, _PROGRAM + imports
        if missing := sorted({*self._tests.modules} - sandbox.modules - modules):
            raise FormatError(f"the tests import {missing[0]}; if it is installed, set `modules`")

    def __call__(self, edits: Edits) -> str | None:
        files = edited(self._before, edits)
        space = SPACE + sum(map(len, files.values()))
        suite = replace(self._tests.suite, files=files, space=space)
        reasons = self._sandbox.test(self._program, suite).reasons
        wrong = [number for number, each in enumerate(reasons, 1) if each is not None]
        if not wrong:
            return None
        return f"{', '.join(map(str, wrong))} of {len(reasons)}: {reasons[wrong[0] - 1]}"
