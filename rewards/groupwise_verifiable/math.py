"""Mathematical equivalence with a gold answer."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise_verifiable.columns import column
from groupwise_verifiable.failures import settled
from groupwise_verifiable.text import content
from groupwise_verifiable.workers import WorkerFailure, map_each


class MathEquivalence:
    r"""1.0 when the completion's answer equals the gold one as mathematics, 0.0 when not.

    Answers are read and compared by math-verify: the content of `\boxed{...}` first, else LaTeX
    after an anchor such as "the answer is". None where the gold answer holds no mathematics.
    The values are those of TRL's `accuracy_reward`, and with `after` those of its
    `reasoning_accuracy_reward`, except that what takes too long is an error here, not a 0.0.
    """

    judges = True

    class Config(BaseModel):
        """Settings of the reward `math`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        gold: str = Field(default="answer", description="Column with the gold answers.")
        after: str | None = Field(
            default=None,
            min_length=1,
            description="Only the text after the last of these counts; without one it is 0.0.",
        )
        timeout: float = Field(default=10.0, gt=0, description="Seconds for one completion.")

    def __init__(self, config: Config | None = None) -> None:
        """Refuses to start where math-verify is missing, before any completion is made."""
        if find_spec("math_verify") is None:
            raise ValueError("reward 'math' needs math-verify: pip install 'groupwise[math]'")
        self.config = config or self.Config()

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Sequence[Any]
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors for those that failed."""
        return settled(self.outcomes(prompts, completions, **columns))

    def outcomes(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | WorkerFailure | None]:
        """Returns the same with failures in their places, for rewards that build on this one."""
        from groupwise_verifiable.math_check import equivalent  # imports sympy

        golds = column(columns, self.config.gold, reward="math")
        results: list[float | WorkerFailure | None] = [0.0] * len(completions)
        pairs = {
            index: (str(gold), text)
            for index, (gold, completion) in enumerate(zip(golds, completions, strict=True))
            if (text := self._counted(content(completion))) is not None
        }
        found = map_each(equivalent, list(pairs.values()), timeout=self.config.timeout)
        for index, outcome in zip(pairs, found, strict=True):
            results[index] = outcome
        return results

    def _counted(self, text: str) -> str | None:
        """The part of the text that counts, None when it never got that far."""
        if self.config.after is None:
            return text
        _, delimiter, rest = text.rpartition(self.config.after)
        return rest if delimiter else None
