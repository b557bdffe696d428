"""Rewards for short right answers: correctness by `math`, combined with length."""

from collections.abc import Callable, Mapping, Sequence
from math import cos, pi
from typing import Any, Literal

from pydantic import Field

from groupwise_messages.completion import content
from groupwise_verifiable.columns import column, members
from groupwise_verifiable.failures import values_of
from groupwise_verifiable.mathematics.reward import MathEquivalence
from groupwise_verifiable.outcome import Outcome


class Length:
    """Prefers short answers among those of one group: -0.5 to 0.5, wrong ones at most 0.

    s = 0.5 - (length - shortest) / (longest - shortest), over the completions of one group; s for
    a right answer, min(0, s) for a wrong one; 0.0 if all have one length; None where gold is no
    mathematics. Kimi k1.5, arXiv:2501.12599, section 2.3.3.

    open-r1's `len_reward` takes shortest and longest over the whole batch, so a prompt that needs
    long answers is punished for the other prompts. In the paper, and here, they are per group.
    open-r1's also counts characters, and gives unreadable gold answers the value of a right one.
    """

    judges = False

    class Config(MathEquivalence.Config):
        """Settings of the reward `length`: those of `math`, and the unit."""

        unit: Literal["tokens", "characters"] = Field(
            default="tokens", description="Unit of lengths."
        )

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        self._correct = MathEquivalence(self.config)

    @property
    def required_columns(self) -> Mapping[str, str]:
        return {"gold": self.config.gold}

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors where gold cannot be checked."""
        lengths = self._lengths(completions, columns)
        slopes = _slopes(column(columns, "groups", reward="length"), lengths)
        correct = self._correct.outcomes(
            prompts, completions, columns, log_metric=log_metric, reward="length"
        )

        def shaped(index: int, right: float) -> float:
            return slopes[index] if right else min(0.0, slopes[index])

        return values_of(_shape(correct, shaped))

    def _lengths(
        self, completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[int]:
        if self.config.unit == "characters":
            return [len(content(completion)) for completion in completions]
        return [len(ids) for ids in column(columns, "completion_ids", reward="length")]


class CosineLength:
    """Right answers get less, wrong ones more, the longer they are, along half a cosine.

    long + (short - long) * (1 + cos(pi * min(tokens / max_length, 1))) / 2, where (short, long) is
    (right_short, right_long) or (wrong_short, wrong_long): -1.0 to 1.0 by default. None where gold
    is no mathematics. "Demystifying Long Chain-of-Thought Reasoning", arXiv:2502.03373, appendix
    C.1; TRL's `get_cosine_scaled_reward`. open-r1's counts characters, and its cosine rises again
    beyond `max_length`.
    """

    judges = False

    class Config(MathEquivalence.Config):
        """Settings of the reward `cosine_length`: those of `math`, and the curve."""

        max_length: int = Field(ge=1, description="Tokens from which the value is constant.")
        right_short: float = Field(default=1.0, description="Value of a right answer of no tokens.")
        right_long: float = Field(
            default=0.5, description="Value of a right answer of `max_length` tokens."
        )
        wrong_short: float = Field(
            default=-1.0, description="Value of a wrong answer of no tokens."
        )
        wrong_long: float = Field(
            default=-0.5, description="Value of a wrong answer of `max_length` tokens."
        )

    def __init__(self, config: Config) -> None:
        self.config = config
        self._correct = MathEquivalence(config)

    @property
    def required_columns(self) -> Mapping[str, str]:
        return {"gold": self.config.gold}

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors where gold cannot be checked."""
        lengths = [len(ids) for ids in column(columns, "completion_ids", reward="cosine_length")]
        correct = self._correct.outcomes(
            prompts, completions, columns, log_metric=log_metric, reward="cosine_length"
        )
        return values_of(_shape(correct, lambda index, right: self._value(lengths[index], right)))

    def _value(self, length: int, right: float) -> float:
        settings = self.config
        if right:
            short, long = settings.right_short, settings.right_long
        else:
            short, long = settings.wrong_short, settings.wrong_long
        return long + 0.5 * (short - long) * (1 + cos(pi * min(length / settings.max_length, 1.0)))


def _slopes(groups: Sequence[int], lengths: Sequence[int]) -> list[float]:
    """From 0.5 for the shortest to -0.5 for the longest completion of each group."""
    slopes = [0.0] * len(lengths)
    for rows in members(groups):
        group = [lengths[row] for row in rows]
        shortest, spread = min(group), max(group) - min(group)
        for row in rows if spread else ():
            slopes[row] = 0.5 - (lengths[row] - shortest) / spread
    return slopes


def _shape(correct: Sequence[Outcome], shaped: Callable[[int, float], float]) -> list[Outcome]:
    """The shaped values; None and failures stay as they are."""
    return [
        shaped(index, outcome) if isinstance(outcome, float) else outcome
        for index, outcome in enumerate(correct)
    ]
