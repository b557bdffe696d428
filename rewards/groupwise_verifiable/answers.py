"""Answers compared with a gold column: as strings, or as numbers."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from groupwise_verifiable.columns import column, is_missing
from groupwise_verifiable.text import (
    content,
    folded,
    last_line,
    last_number,
    tagged,
    whole_number,
)


class ExactAnswer:
    """1.0 when the answer is the gold string, else 0.0; None where the gold value is missing.

    Both sides are stripped and their runs of white space become one space before they are
    compared. A completion without the asked-for tag is wrong.
    """

    judges = True

    class Config(BaseModel):
        """Settings of the reward `exact_answer`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        gold: str = Field(default="answer", description="Column with the gold answers.")
        extract: Literal["whole", "tag", "last_line"] = Field(
            default="whole", description="What of the completion is the answer."
        )
        tag: str = Field(
            default="answer", min_length=1, description="The tag's name for `extract: tag`."
        )
        ignore_case: bool = Field(default=False, description="Whether A equals a.")

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        golds = column(columns, self.config.gold, reward="exact_answer")
        return [
            None if is_missing(gold) else self._score(content(completion), str(gold))
            for completion, gold in zip(completions, golds, strict=True)
        ]

    def _score(self, text: str, gold: str) -> float:
        answer = self._extracted(text)
        return 0.0 if answer is None else float(self._normal(answer) == self._normal(gold))

    def _extracted(self, text: str) -> str | None:
        if self.config.extract == "tag":
            return tagged(text, self.config.tag)
        return last_line(text) if self.config.extract == "last_line" else text

    def _normal(self, text: str) -> str:
        plain = folded(text)
        return plain.casefold() if self.config.ignore_case else plain


class NumericAnswer:
    """1.0 when the answer is the gold number, else 0.0; None where gold is not a number.

    Numbers are compared exactly, as fractions: |answer - gold| <= max(absolute, relative * |gold|).
    1,234 and 1234, 0.75 and 3/4 are equal. A minus sign that follows a word, a digit or a bracket
    is an operator: the last number of "5-3" is 3.
    """

    judges = True

    class Config(BaseModel):
        """Settings of the reward `numeric_answer`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        gold: str = Field(default="answer", description="Column with the gold answers.")
        extract: Literal["last_number", "tag", "whole"] = Field(
            default="last_number",
            description="The answer: the completion's last number, or a tag's content or the "
            "whole completion, which then must be a number and nothing else.",
        )
        tag: str = Field(
            default="answer", min_length=1, description="The tag's name for `extract: tag`."
        )
        absolute: float = Field(
            default=0.0,
            ge=0,
            allow_inf_nan=False,
            description="Largest difference that still is equal.",
        )
        relative: float = Field(
            default=0.0,
            ge=0,
            allow_inf_nan=False,
            description="The same, as a share of the gold number.",
        )
        ended: bool = Field(
            default=False,
            description="Count only completions that ended by themselves, none that were cut off.",
        )

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        golds = column(columns, self.config.gold, reward="numeric_answer")
        cut = self._cut(columns, len(completions))
        return [
            self._score(content(completion), gold, cut=was_cut)
            for completion, gold, was_cut in zip(completions, golds, cut, strict=True)
        ]

    def _cut(self, columns: Mapping[str, Sequence[Any]], count: int) -> Sequence[bool]:
        if not self.config.ended:
            return [False] * count
        return [bool(flag) for flag in column(columns, "truncated", reward="numeric_answer")]

    def _score(self, text: str, gold: object, *, cut: bool) -> float | None:
        right = whole_number(str(gold))
        if right is None:
            return None
        answer = None if cut else self._number(text)
        return 0.0 if answer is None else float(abs(answer - right) <= self._tolerance(right))

    def _tolerance(self, gold: Fraction) -> Fraction:
        # By way of the decimal string: 0.1 in a configuration means one tenth.
        relative = Fraction(str(self.config.relative)) * abs(gold)
        return max(Fraction(str(self.config.absolute)), relative)

    def _number(self, text: str) -> Fraction | None:
        if self.config.extract == "last_number":
            return last_number(text)
        answer = tagged(text, self.config.tag) if self.config.extract == "tag" else text
        return None if answer is None else whole_number(answer)
