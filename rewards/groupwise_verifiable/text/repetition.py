"""A penalty for repeated n-grams."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from groupwise_messages.completion import content
from groupwise_verifiable.columns import column


class Repetition:
    """A penalty for repeated n-grams: (1 - distinct n-grams / n-grams) * max_penalty.

    0.0 for completions shorter than one n-gram. "Demystifying Long Chain-of-Thought Reasoning",
    arXiv:2502.03373, appendix C.2. Over tokens it is TRL's `get_repetition_penalty_reward`, over
    words open-r1's.
    """

    judges = False

    class Config(BaseModel):
        """Settings of the reward `repetition`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        size: int = Field(default=3, ge=1, description="n, in tokens or words.")
        max_penalty: float = Field(
            default=-1.0,
            le=0,
            allow_inf_nan=False,
            description="The value for full repetition.",
        )
        over: Literal["auto", "tokens", "words"] = Field(
            default="auto",
            description="N-grams of token ids, of lower-case words, or (auto) of token ids if the "
            "policy provides them, else of words.",
        )

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        return [self._score(sequence) for sequence in self._sequences(completions, columns)]

    def _sequences(
        self, completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> Sequence[Sequence[Hashable]]:
        has_tokens = columns.get("completion_ids") is not None
        if self.config.over == "words" or (self.config.over == "auto" and not has_tokens):
            return [content(completion).lower().split() for completion in completions]
        return column(columns, "completion_ids", reward="repetition")

    def _score(self, sequence: Sequence[Hashable]) -> float:
        total = len(sequence) - self.config.size + 1
        if total < 1:
            return 0.0
        shifted = (sequence[start:] for start in range(self.config.size))
        repeated = total - len(set(zip(*shifted, strict=False)))
        return repeated / total * self.config.max_penalty if repeated else 0.0
