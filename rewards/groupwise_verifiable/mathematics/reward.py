"""Mathematical equivalence with a gold answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise_verifiable.columns import column
from groupwise_verifiable.completion import content, prompt_text
from groupwise_verifiable.failures import Outcome, judged, settled
from groupwise_verifiable.mathematics.attempt import Attempt, Rules
from groupwise_verifiable.workers import map_each


class MathEquivalence:
    r"""1.0 when the completion's answer equals the gold one as mathematics, 0.0 when not.

    Answers are compared by math-verify. By the strict rules an answer is a value in simplest form,
    with nothing left to compute that the gold answer does not leave, and `6 = 5` is not 5; the
    others are those of TRL's `accuracy_reward` (with `after` of its `reasoning_accuracy_reward`)
    and of open-r1's. None where the gold answer holds no mathematics. An answer that takes too
    long to check is wrong, and counted by the metric `unchecked`.
    """

    judges = True

    class Config(BaseModel):
        """Settings of the reward `math`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        gold: str = Field(default="answer", description="Column with the gold answers.")
        rules: Rules = Field(
            default="strict",
            description="What is right: a value in simplest form, any form of it, or theirs.",
        )
        after: str | None = Field(
            default=None,
            min_length=1,
            description="Only the text after the last of these counts; without one it is 0.0.",
        )
        timeout: float = Field(default=5.0, gt=0, description="Seconds for one completion.")

    def __init__(self, config: Config | None = None) -> None:
        """Refuses to start where math-verify is missing, before any completion is made."""
        if find_spec("math_verify") is None:
            raise ValueError("reward 'math' needs math-verify: pip install 'groupwise[math]'")
        self.config = config or self.Config()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors where gold cannot be checked."""
        return settled(self.outcomes(prompts, completions, columns, log_metric=log_metric))

    def outcomes(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any]],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        reward: str = "math",
    ) -> list[Outcome]:
        """Returns the same with failures in their places, for rewards that build on this one."""
        golds = column(columns, self.config.gold, reward=reward)
        attempts = [
            Attempt(
                str(gold),
                self._counted(content(completion)),
                prompt_text(prompt),
                self.config.rules,
            )
            for gold, completion, prompt in zip(golds, completions, prompts, strict=True)
        ]

        def on_gold(indices: Sequence[int]) -> list[Outcome]:
            return self._checked(
                [
                    replace(attempts[index], text=_as_answer(attempts[index].gold))
                    for index in indices
                ]
            )

        return judged(self._checked(attempts), on_gold=on_gold, log_metric=log_metric)

    def _checked(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """The outcomes; equal attempts, of which a group has many, are checked once."""
        from groupwise_verifiable.mathematics.check import equivalent  # imports sympy

        different = list(dict.fromkeys(attempts))
        outcomes = map_each(equivalent, different, timeout=self.config.timeout)
        by_attempt = dict(zip(different, outcomes, strict=True))
        return [by_attempt[attempt] for attempt in attempts]

    def _counted(self, text: str) -> str:
        """The part of the text that counts: nothing where it never got that far."""
        if self.config.after is None:
            return text
        _, delimiter, rest = text.rpartition(self.config.after)
        return rest if delimiter else ""


def _as_answer(gold: str) -> str:
    return gold if "\\boxed" in gold else f"\\boxed{{{gold.strip().strip('$')}}}"
