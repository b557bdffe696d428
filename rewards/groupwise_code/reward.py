"""code_tests: whether a program passes its tests, which are run outside of it."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import nan
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from groupwise.rewards import SampleErrors, seconds_left
from groupwise_code.answer import program_of
from groupwise_code.formats import FORMATS, OTHERS, cases_of
from groupwise_code.running import failure
from groupwise_code.solution import solution_of
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.process import SandboxError
from groupwise_sandbox.sandbox import Sandbox

SHARE = 0.9
"""The part of the time left to a call in which programs are begun."""


class CodeTests:
    """1.0 if a program passes all tests of its row, else 0.0; or the share that it passes.

    The program is the Python of the completion's last fenced block. It runs in a sandbox, where it
    can reach no file, process or network; what is expected is never in its process, and tests that
    are code run in another one, which it reaches by plain data alone. So a program is paid for what
    it answers, and for nothing else that it does.

    What a program causes (time, memory, a crash) is 0; where the sandbox itself fails the sample
    failed, and has no gradient. `solutions` of a row, if it has them, are tried before a run.
    """

    judges = True

    class Config(BaseModel):
        """Settings of the reward `code_tests`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        pay: Literal["all", "share"] = Field(
            default="all",
            description="For all tests of a row together, or for the share that passes.",
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
            description="Programs at the same time; by default one for each processor.",
        )
        modules: tuple[str, ...] = Field(
            default=(),
            description="Modules that programs may import besides the standard library's, such as "
            "numpy.",
        )

    def __init__(self, config: Config | None = None) -> None:
        """Raises UserError where there is no sandbox on this machine."""
        self.config = config or self.Config()
        self._sandbox = Sandbox(
            limits=Limits(seconds=self.config.timeout, memory=self.config.memory << 20),
            parallel=self.config.parallel,
            modules=self.config.modules,
        )

    def check_row(self, row: Mapping[str, Any]) -> None:
        """Raises ValueError for a row whose tests cannot be read."""
        cases_of(row)

    def gold_completion(self, row: Mapping[str, Any]) -> str | None:
        """Returns the data set's own solution, where a row has one."""
        cases_of(row)
        solution = solution_of(row)
        return None if solution is None else f"```python\n{solution}\n```"

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_extra: Callable[[str, Sequence[Any]], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors where the sandbox failed."""
        given = {name: columns[name] for name in (*FORMATS, *OTHERS) if name in columns}
        rows = [
            {name: values[i] for name, values in given.items()} for i in range(len(completions))
        ]
        until = time.monotonic() + SHARE * seconds_left()
        with ThreadPoolExecutor(self._sandbox.parallel) as pool:
            tried = [
                pool.submit(self._tried, program_of(completion), row, until)
                for completion, row in zip(completions, rows, strict=True)
            ]
        values, reasons = list[float](), dict[int, str]()
        failed = list[str | None]()
        for index, each in enumerate(tried):
            try:
                value, reason = each.result()
            except (SandboxError, ValueError) as error:  # the machine's fault, or the row's
                value, reason = nan, None
                reasons[index] = str(error)
            values.append(value)
            failed.append(reason)
        if log_extra is not None:
            log_extra("first_failure", failed)
        if reasons:
            raise SampleErrors(values, reasons)
        return list(values)

    def close(self) -> None:
        """Ends the sandbox."""
        self._sandbox.close()

    def _tried(
        self, program: str | None, row: Mapping[str, Any], until: float
    ) -> tuple[float, str | None]:
        """The value of a program, and why its first test failed, if one did."""
        cases = cases_of(row)[: self.config.most]
        if program is None:
            return 0.0, "no program"
        passed, first = 0, None
        for number, case in enumerate(cases, 1):
            if time.monotonic() > until:
                raise SandboxError("the call's time was up before all tests were begun")
            reason = failure(self._sandbox, program, case)
            passed += reason is None
            if reason is not None and first is None:
                first = f"test {number} of {len(cases)}: {reason}"
                if self.config.pay == "all":
                    return 0.0, first
        return passed / len(cases), first
