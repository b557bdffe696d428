"""A reward for mathematical equality with a gold answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise.rewards import seconds_left
from groupwise_messages.completion import judged_texts, prompt_text
from groupwise_verifiable.columns import column, gold_text, gold_texts
from groupwise_verifiable.failures import SHARE, values_of, without_unchecked
from groupwise_verifiable.mathematics.attempt import Attempt, Rules
from groupwise_verifiable.mathematics.check import equivalent
from groupwise_verifiable.outcome import Outcome


class MathEquivalence:
    r"""1.0 if the completion's answer equals the gold one mathematically, else 0.0.

    By the rules `strict` an answer has the kind and the form of gold, leaves nothing to compute
    that gold does not leave, and is no copy of the prompt; by `any_form` its value is gold's. `trl`
    is TRL's `accuracy_reward` (with `after` its `reasoning_accuracy_reward`), `open_r1` open-r1's;
    both compare by math-verify, in worker processes: an answer that takes too long to check is
    wrong, and counted in the metric `unchecked`. None where the gold answer is no mathematics.
    """

    judges = True

    class Config(BaseModel):
        """Settings of the reward `math`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        gold: str = Field(default="answer", description="Column with the gold answers.")
        rules: Rules = Field(
            default="strict",
            description="Which answers are right: strict: gold's kind and form; any_form: gold's "
            "value; trl, open_r1: as in these libraries.",
        )
        after: str | None = Field(
            default=None,
            min_length=1,
            description="Only the text after the last occurrence of this string counts; without "
            "one the value is 0.0.",
        )
        timeout: float = Field(
            default=5.0,
            gt=0,
            description="Most processor time to check one completion by `trl` and `open_r1`, in "
            "seconds.",
        )

    def __init__(self, config: Config | None = None) -> None:
        """Raises ValueError where math-verify or pebble is missing for the rules that need them."""
        self.config = config or self.Config()
        for module in ("math_verify", "pebble") if self._is_published else ():
            if find_spec(module) is None:
                raise ValueError(
                    f"reward 'math' with rules: {self.config.rules} needs "
                    f"{module.replace('_', '-')}: pip install 'groupwise[math]'"
                )

    @property
    def required_columns(self) -> Mapping[str, str]:
        return {"gold": self.config.gold}

    def gold_completion(self, row: Mapping[str, Any]) -> str | None:
        """Returns the gold answer as the completion that states it."""
        gold = gold_text(row.get(self.config.gold))
        return None if gold is None else f"{self.config.after or ''}{_as_answer(gold)}"

    @property
    def _is_published(self) -> bool:
        return self.config.rules in ("trl", "open_r1")

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors where gold cannot be checked."""
        return values_of(self.outcomes(prompts, completions, columns, log_metric=log_metric))

    def outcomes(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any]],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        reward: str = "math",
    ) -> list[Outcome]:
        """Returns the values, or failures in their place, for rewards that build on this one."""
        golds = column(columns, self.config.gold, reward=reward)
        texts = judged_texts(completions, columns)
        attempts = [
            Attempt(
                next(iter(gold_texts(gold)), ""),
                self._counted(text),
                prompt_text(prompt),
                self.config.rules,
            )
            for gold, text, prompt in zip(golds, texts, prompts, strict=True)
        ]

        def on_gold(indices: Sequence[int]) -> list[Outcome]:
            return self._checked(
                [
                    replace(attempts[index], text=_as_answer(attempts[index].gold))
                    for index in indices
                ]
            )

        return without_unchecked(self._checked(attempts), on_gold=on_gold, log_metric=log_metric)

    def _checked(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """The outcomes; equal attempts, frequent within a group, are checked once."""
        different = list(dict.fromkeys(attempts))
        if self._is_published:
            from groupwise_verifiable.mathematics.published import published  # imports sympy
            from groupwise_verifiable.workers import map_each  # imports pebble

            outcomes = map_each(
                published,
                different,
                timeout=self.config.timeout,
                within=SHARE * seconds_left(),
            )
        else:
            outcomes = [equivalent(attempt) for attempt in different]
        by_attempt = dict(zip(different, outcomes, strict=True))
        return [by_attempt[attempt] for attempt in attempts]

    def _counted(self, text: str) -> str:
        """The part of the text that counts; "" if the text lacks the string of `after`."""
        if self.config.after is None:
            return text
        _, delimiter, rest = text.rpartition(self.config.after)
        return rest if delimiter else ""


def _as_answer(gold: str) -> str:
    return gold if "\\boxed" in gold else f"\\boxed{{{gold.strip().strip('$')}}}"
