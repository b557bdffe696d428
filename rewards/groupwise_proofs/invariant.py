"""invariant: whether a completion is an inductive invariant of its row's loop."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from groupwise.kit.errors import UserError
from groupwise_messages.completion import judged_texts
from groupwise_proofs import sygus
from groupwise_proofs.judging import Judging, Left, text_in
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.sandbox import Sandbox

_SOLVER = f"""
import sys
import z3

for script in sys.stdin.read().split({sygus.SEPARATOR!r}):
    solver = z3.Solver()
    solver.from_string(script)
    print(solver.check(), flush=True)
"""


class Invariant:
    """1.0 if the completion is an inductive invariant that proves its row's loop right, else 0.0.

    Of a loop with integers, reals or truth values it is asked what holds before each turn: z3 has
    to find no state in which it fails at the start, is lost in a step, or leaves the end open. The
    text is the last fenced block, or all of the completion: an expression in SMT-LIB, or its
    `define-fun`. z3 runs in a sandbox, and reads nothing of it but signs and variables.

    What z3 cannot decide in time is 0; where the sandbox fails the sample failed.
    """

    judges = True
    required_columns: ClassVar = {"problem": "problem"}

    class Config(BaseModel):
        """Settings of the reward `invariant`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        problem: str = Field(
            default="problem", description="Column with the problem, a text in SyGuS's language."
        )
        timeout: float = Field(
            default=5.0,
            gt=0,
            description="Most processor time of z3 for one completion, in seconds.",
        )
        memory: int = Field(default=512, ge=64, description="Most memory of z3, in MiB.")

    def __init__(self, config: Config | None = None) -> None:
        """Raises UserError where z3 is missing, or there is no sandbox on this machine."""
        if find_spec("z3") is None:
            raise UserError("reward 'invariant' needs z3: pip install 'groupwise[proofs]'")
        self.config = config or self.Config()
        limits = Limits(seconds=self.config.timeout, memory=self.config.memory << 20)
        self._sandbox = Sandbox(limits=limits, modules=("z3",))
        self._judging = Judging(self._complaint, self._sandbox.parallel)

    def check_row(self, row: Mapping[str, Any]) -> None:
        """Raises ValueError for a row whose problem cannot be read."""
        sygus.problem_of(str(row.get(self.config.problem)))

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_extra: Callable[[str, Sequence[Any]], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors where the sandbox failed."""
        texts = map(text_in, judged_texts(completions, columns))
        cases = [*zip(map(str, columns[self.config.problem]), texts, strict=True)]
        log = log_extra and partial(log_extra, "no_invariant")
        return self._judging.values(cases, log)

    def close(self) -> None:
        """Ends what runs."""
        self._sandbox.close()

    def _complaint(self, case: tuple[str, str], left: Left) -> str | None:
        """Raises FormatError and SandboxError."""
        problem = sygus.problem_of(case[0])
        try:
            script = problem.script(*sygus.invariant_in(problem, case[1]))
        except ValueError as error:
            return str(error)
        finished = self._sandbox.run(_SOLVER, script)
        answers = finished.stdout.decode("utf-8", "replace").split()
        if finished.ended != "exit" or finished.status != 0 or len(answers) != 3:
            return finished.why
        return sygus.complaint(answers)
