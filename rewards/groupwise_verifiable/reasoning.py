"""Scores of reasoning-gym's own verifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise_verifiable.columns import column
from groupwise_verifiable.failures import settled
from groupwise_verifiable.puzzles import check_task, task_names
from groupwise_verifiable.text import content, tagged
from groupwise_verifiable.workers import WorkerFailure, here_each, map_each

if TYPE_CHECKING:
    from groupwise_verifiable.puzzle_check import Attempt


class ReasoningGymScore:
    """What the verifier of the row's reasoning-gym task gives the answer: mostly 0.0 to 1.0.

    The answer is the content of the last pair of tags, as reasoning-gym itself extracts it. The
    verifier of a completion without one gets None, a wrong answer. The rows' columns `question`,
    `answer` and `metadata` are those of the prompt source `reasoning_gym`.

    Tasks whose verifier evaluates expressions, or can be kept busy for ever by a short answer,
    always run in killable workers, where only literals and elementary mathematics are evaluated.
    """

    judges = True

    class Config(BaseModel):
        """Settings of the reward `reasoning_gym`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        tag: str | None = Field(
            default="answer", description="The tag around the answer; null: the whole completion."
        )
        task: str | None = Field(
            default=None, description="The task; null: the `source_dataset` in each row's metadata."
        )
        isolate: bool = Field(
            default=False, description="Run every verifier in a worker, not only those that must."
        )
        timeout: float = Field(
            default=10.0, gt=0, description="Seconds for one completion in a worker."
        )

    def __init__(self, config: Config | None = None) -> None:
        """Refuses to start where reasoning-gym is missing or has no such task."""
        self.config = config or self.Config()
        if self.config.task is None:
            task_names()
        elif check_task(self.config.task) == "composite":
            raise ValueError(
                "reward 'reasoning_gym': 'composite' has no verifier of its own; leave `task` "
                "unset, for each row's metadata names its task"
            )

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors for those that failed."""
        from groupwise_verifiable.puzzle_check import (  # imports reasoning-gym
            MUST_ISOLATE,
            score,
        )

        attempts = self._attempts(completions, columns)
        apart = [
            index
            for index, attempt in enumerate(attempts)
            if self.config.isolate or attempt.task in MUST_ISOLATE
        ]
        together = sorted(set(range(len(attempts))) - set(apart))
        results: dict[int, float | WorkerFailure] = {}
        there = map_each(score, [attempts[index] for index in apart], timeout=self.config.timeout)
        here = here_each(score, [attempts[index] for index in together])
        results.update(zip(apart, there, strict=True))
        results.update(zip(together, here, strict=True))
        return settled([results[index] for index in range(len(attempts))])

    def _attempts(
        self, completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[Attempt]:
        from groupwise_verifiable.puzzle_check import Attempt  # as above

        names = ("question", "answer", "metadata")
        rows = zip(*(column(columns, name, reward="reasoning_gym") for name in names), strict=True)
        entries = [dict(zip(names, row, strict=True)) for row in rows]
        return [
            Attempt(self._task(entry["metadata"]), self._answer(content(completion)), entry)
            for completion, entry in zip(completions, entries, strict=True)
        ]

    def _answer(self, text: str) -> str | None:
        return text.strip() if self.config.tag is None else tagged(text, self.config.tag)

    def _task(self, metadata: Mapping[str, Any]) -> str:
        if self.config.task is not None:
            return self.config.task
        if "source_dataset" not in metadata:
            raise ValueError(
                "reward 'reasoning_gym' finds no 'source_dataset' in a row's metadata: use rows of "
                "the prompt source 'reasoning_gym', or set `task`"
            )
        return check_task(metadata["source_dataset"])
