"""proof: whether a completion proves its row's theorem."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from groupwise.kit.errors import UserError
from groupwise_messages.completion import judged_texts
from groupwise_proofs.coq import Coq
from groupwise_proofs.judging import Judging, Left, text_in
from groupwise_proofs.prover import Here, Prover
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.sandbox import Sandbox

_OUTPUT = 16 << 20
"""Bytes of a compiled proof."""
_CHECKING = 5.0
"""Seconds before a run in which rows' theorems are compiled."""
_SERVER_PARALLEL = 16
"""Proofs at the same time on a server."""


class Proof:
    """1.0 if the completion proves the theorem of its row, in Coq or in Lean 4, else 0.0.

    The text is the last fenced block, or all of the completion: a proof, with the theorem's own
    statement and lemmas before it or without. Words that no proof needs are refused. Then the
    prover is asked whether what was proved is the row's theorem, and on which axioms it rests: of
    Coq in a process that none of the completion's commands runs in.

    What a proof causes (time, memory, an error) is 0; where the sandbox or the server fails the
    sample failed, and has no gradient.
    """

    judges = True

    class Config(BaseModel):
        """Settings of the reward `proof`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        axioms: tuple[str, ...] | None = Field(
            default=None,
            description="Full names of axioms that a proof may rest on, such as "
            "Coq.Logic.Classical_Prop.classic; by default none in Coq, and in Lean propext, "
            "Classical.choice and Quot.sound.",
        )
        server: str | None = Field(
            default=None,
            pattern=r"^https?://[^/\s]+",
            description="Address of a server of Kimina's protocol, such as http://localhost:8000, "
            "which judges proofs in Lean 4; without one they are in Coq, and judged here.",
        )
        api_key: SecretStr | None = Field(
            default=None, description="Key of the server, such as ${LEAN_SERVER_API_KEY}."
        )
        retries: int = Field(
            default=3, ge=0, description="How often a request that failed is repeated."
        )
        timeout: float = Field(
            default=10.0,
            gt=0,
            description="Most processor time of each of a proof's three runs in Coq, in seconds, "
            "and five times as much wall time; on a server, wall time of a proof.",
        )
        memory: int = Field(
            default=1024, ge=512, description="Most memory of each of these runs, in MiB."
        )
        parallel: int | None = Field(
            default=None,
            ge=1,
            description="Proofs at the same time; by default one for each processor, and 16 on a "
            "server.",
        )
        total_memory: int | None = Field(
            default=None,
            ge=1024,
            description="Most memory of all proofs together, in MiB, at least twice `memory`; by "
            "default half of what is free. Fewer run at the same time where it is little.",
        )

    def __init__(self, config: Config | None = None) -> None:
        """Raises UserError where proofs cannot be checked on this machine."""
        self.config = config or self.Config()
        self._prover = _prover(self.config)
        self._compiling = 0.0
        self._judging = Judging(self._complaint, self._prover.parallel)
        if (reason := self._prover.refusal) is not None:
            self._prover.close()
            raise UserError(reason)

    def check_row(self, row: Mapping[str, Any]) -> None:
        """Raises ValueError for a row whose theorem cannot be read; of the first rows, also for one
        that does not compile."""
        theorem = self._prover.theorem(row)
        if self._compiling < _CHECKING:
            began = time.monotonic()
            self._prover.check(theorem)
            self._compiling += time.monotonic() - began

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        formal_statement: Sequence[Any],
        header: Sequence[Any] | None = None,
        *,
        log_extra: Callable[[str, Sequence[Any]], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors where the sandbox failed."""
        headers = header or [""] * len(completions)
        texts = map(text_in, judged_texts(completions, columns))
        cases = [
            _Case(str(above or ""), str(statement), text)
            for above, statement, text in zip(headers, formal_statement, texts, strict=True)
        ]
        return self._judging.values(cases, log_extra and partial(log_extra, "unproved"))

    def close(self) -> None:
        """Ends what runs."""
        self._prover.close()

    def _complaint(self, case: "_Case", left: Left) -> str | None:
        """Why a text is no proof, or None. Raises FormatError and SandboxError."""
        row = {"header": case.header, "formal_statement": case.statement}
        return self._prover.complaint(self._prover.theorem(row), case.text, left)


class _Case(NamedTuple):
    header: str
    statement: str
    text: str


def _prover(config: Proof.Config) -> Prover:
    """Raises UserError where there is no sandbox on this machine."""
    if config.server is not None:
        try:
            from groupwise_proofs.lean import AXIOMS, Lean
        except ModuleNotFoundError as error:
            raise UserError(f"server needs httpx: pip install 'httpx>=0.27' ({error})") from error
        key = config.api_key
        return Lean(
            config.server,
            AXIOMS if config.axioms is None else config.axioms,
            timeout=config.timeout,
            parallel=config.parallel or _SERVER_PARALLEL,
            retries=config.retries,
            key=None if key is None else key.get_secret_value(),
        )
    total = config.total_memory
    sandbox = Sandbox(
        limits=Limits(seconds=config.timeout, memory=config.memory << 20, output=_OUTPUT),
        parallel=config.parallel,
        total_memory=None if total is None else total << 20,
    )
    return Here(sandbox, Coq(sandbox, config.axioms or ()))
