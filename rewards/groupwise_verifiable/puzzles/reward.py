"""A reward by reasoning-gym's own verifiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise.rewards import seconds_left
from groupwise_messages.completion import content, judged_texts, tagged
from groupwise_verifiable.columns import column
from groupwise_verifiable.failures import SHARE, values_of, without_unchecked
from groupwise_verifiable.outcome import Outcome, WorkerFailure
from groupwise_verifiable.puzzles.rules import REFUSED
from groupwise_verifiable.puzzles.tasks import check_task, task_home, task_names
from groupwise_verifiable.workers import map_each

if TYPE_CHECKING:
    from groupwise_verifiable.puzzles.check import Attempt


class ReasoningGymScore:
    """1.0 if the verifier of the row's reasoning-gym task accepts the answer, else 0.0.

    The answer is the content of the last pair of tags, as reasoning-gym itself extracts it; a
    completion without tags is wrong. Rows need the columns `question`, `answer` and `metadata` of
    the prompt source `reasoning_gym`.

    Many verifiers also give partial credit: sudoku's for each cell, some for any text at all. A
    policy would learn to collect that, so it counts only with `partial: true`.

    Verifiers run in killable workers, where only literals and elementary mathematics are evaluated.
    An answer that cannot be checked in time is wrong, and counted in the metric `unchecked`.
    """

    judges = True

    class Config(BaseModel):
        """Settings of the reward `reasoning_gym`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        tag: str | None = Field(
            default="answer", description="The tag around the answer; null: the whole completion."
        )
        task: str | None = Field(
            default=None, description="The task; null: `source_dataset` of each row's metadata."
        )
        partial: bool = Field(
            default=False, description="Whether the verifier's partial credit counts."
        )
        timeout: float = Field(
            default=5.0,
            gt=0,
            description="Most processor time to check one completion, in seconds.",
        )

    def __init__(self, config: Config | None = None) -> None:
        """Raises ValueError where reasoning-gym is missing, or the task is unknown or refused."""
        self.config = config or self.Config()
        if self.config.task is None:
            task_names()
        elif _checked(self.config.task) == "composite":
            raise ValueError(
                "reward 'reasoning_gym': 'composite' has no verifier of its own; leave `task` "
                "unset: each row's metadata names its task"
            )

    @property
    def required_columns(self) -> Mapping[str, str]:
        return {name: name for name in ("question", "answer", "metadata")}

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors where rows cannot be checked."""
        from groupwise_verifiable.puzzles.check import on_gold  # imports reasoning-gym

        attempts = self._attempts(completions, columns)
        outcomes = without_unchecked(
            self._outcomes(attempts),
            on_gold=lambda indices: self._outcomes([on_gold(attempts[index]) for index in indices]),
            log_metric=log_metric,
        )
        return values_of(outcomes)

    def _outcomes(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        from groupwise_verifiable.puzzles.check import score  # as above

        outcomes = map_each(
            score, attempts, timeout=self.config.timeout, within=SHARE * seconds_left()
        )
        return [
            outcome
            if isinstance(outcome, WorkerFailure) or self.config.partial
            else float(outcome == 1.0)
            for outcome in outcomes
        ]

    def _attempts(
        self, completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[Attempt]:
        from groupwise_verifiable.puzzles.check import Attempt  # as above

        names = ("question", "answer", "metadata")
        rows = zip(*(column(columns, name, reward="reasoning_gym") for name in names), strict=True)
        entries = [dict(zip(names, row, strict=True)) for row in rows]
        tasks = [self._task(entry["metadata"]) for entry in entries]
        return [
            Attempt(task, answer, entry, task_home(task))
            for task, answer, entry in zip(
                tasks, self._answers(completions, columns), entries, strict=True
            )
        ]

    def _answers(
        self, completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[str | None]:
        tag = self.config.tag
        if tag is None:
            return [content(completion).strip() for completion in completions]
        return [tagged(text, tag) for text in judged_texts(completions, columns)]

    def _task(self, metadata: Mapping[str, Any]) -> str:
        if self.config.task is not None:
            return self.config.task
        if "source_dataset" not in metadata:
            raise ValueError(
                "reward 'reasoning_gym' finds no 'source_dataset' in a row's metadata: use rows of "
                "the prompt source 'reasoning_gym', or set `task`"
            )
        return _checked(metadata["source_dataset"])


def _checked(task: object) -> str:
    """The name of a task. Raises ValueError for an unknown task, or one with a useless verifier."""
    name = check_task(task)
    if name in REFUSED:
        raise ValueError(
            f"reward 'reasoning_gym' refuses the task {name!r}: {REFUSED[name]}; use another task "
            "or a reward of your own"
        )
    return name
