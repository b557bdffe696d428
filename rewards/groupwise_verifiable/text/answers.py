"""Rewards that compare the answer with a gold column, as string or as number."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal
from unicodedata import normalize

from pydantic import BaseModel, ConfigDict, Field

from groupwise_messages.completion import outside_thinking, prompt_text, tagged
from groupwise_verifiable.columns import column, gold_text, gold_texts
from groupwise_verifiable.reading.choice import choice, plain_words, stated_word
from groupwise_verifiable.reading.node import key
from groupwise_verifiable.reading.numbers import Number, gold_number, last_number, whole_number
from groupwise_verifiable.reading.question import Question, read_question
from groupwise_verifiable.text.accepted import Accepted, AcceptedConfig, folded, judged, stated
from groupwise_verifiable.text.squad import normal

# Longest answer that is normalised, in lengths of the gold answer: a letter with combining marks is
# several characters in another Unicode form. Normalising takes quadratic time.
_LONGEST_FORM = 20
_LONGEST_WORDS = 60  # "The correct option is", \\text{...}


class ExactAnswer(Accepted):
    """1.0 if the answer is the gold string, or any of several, else 0.0; None where gold is blank.

    By the rules `strict` both sides are stripped, runs of white space become one space, and Unicode
    is normalised (NFC). Signs of LaTeX and Markdown around an answer fall away, as do the brackets,
    the full stop and the words that models put around the letter of an option. `squad` is the exact
    match of SQuAD (arXiv:1606.05250), as Search-R1 has it.
    With `extract: tag`, a completion without the tag is wrong.
    """

    judges = True
    name = "exact_answer"

    class Config(AcceptedConfig):
        """Settings of the reward `exact_answer`."""

        rules: Literal["strict", "squad"] = Field(
            default="strict",
            description="Which answers are right: strict: the gold string; squad: also in other "
            "case, without punctuation, articles and white space.",
        )
        ignore_case: bool = Field(default=False, description="Whether A equals a.")

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())

    def score(self, answer: str, gold: str) -> float:
        """Returns 1.0 for an answer that is gold, else 0.0."""
        if self.config.rules == "squad":
            return float(normal(answer) == normal(gold))
        plain = folded(answer)
        if len(plain) > _LONGEST_FORM * len(gold) + _LONGEST_WORDS:
            return 0.0
        return float(self._normal(plain) == self._normal(gold) or self._is_dressed(plain, gold))

    def _is_dressed(self, answer: str, gold: str) -> bool:
        """Whether an answer is gold in the dress that models give it: `\\boxed{C}`, **C**, (C)."""
        letter = choice(gold)
        if letter is not None:
            return (
                choice(self._normal(answer).upper() if self.config.ignore_case else answer)
                == letter
            )
        undressed = stated_word(answer)
        return bool(undressed) and self._normal(undressed) == self._normal(plain_words(gold))

    def _normal(self, text: str) -> str:
        return normalize("NFC", text.casefold() if self.config.ignore_case else text)


class NumericAnswer:
    """1.0 if the answer is the gold number, else 0.0; None where gold is not a number.

    Numbers are compared exactly, as fractions: |answer - gold| <= max(absolute, relative * |gold|);
    1,234 equals 1234, and 0.75 equals 3/4. An unfinished computation is no answer: the operand 3 in
    "5-3", or, unless gold is a fraction, too, a fraction that is not reduced or is copied from the
    prompt. The text in `<think>...</think>` does not count.
    """

    judges = True

    class Config(BaseModel):
        """Settings of the reward `numeric_answer`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        gold: str = Field(default="answer", description="Column with the gold answers.")
        extract: Literal["last_number", "tag", "whole"] = Field(
            default="last_number",
            description="The answer: the completion's last number, if it stands by itself; or the "
            "content of a tag, or the whole completion, which must be a number and nothing else.",
        )
        tag: str = Field(
            default="answer", min_length=1, description="The tag's name for `extract: tag`."
        )
        absolute: float = Field(
            default=0.0,
            ge=0,
            allow_inf_nan=False,
            description="Largest absolute difference at which numbers are equal.",
        )
        relative: float = Field(
            default=0.0,
            ge=0,
            allow_inf_nan=False,
            description="Largest difference as a share of the gold number.",
        )
        ended: bool | None = Field(
            default=None,
            description="Whether truncated completions are wrong; if unset they are, unless "
            "`extract: tag` or the fact `truncated` is missing.",
        )

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    @property
    def required_columns(self) -> Mapping[str, str]:
        return {"gold": self.config.gold}

    def gold_completion(self, row: Mapping[str, Any]) -> str | None:
        """Returns the gold answer as the completion that states it; raises ValueError for one that
        is not a number."""
        gold = gold_text(row.get(self.config.gold))
        if gold is not None and gold_number(gold) is None:
            raise ValueError(
                f"expected a number in the column {self.config.gold!r}, found {gold!r:.80}; "
                f"`exact_answer` compares words"
            )
        return stated(gold, self.config.extract, self.config.tag)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        golds = column(columns, self.config.gold, reward="numeric_answer")
        cut = self._cut(columns, len(completions))
        texts = judged(self.config.extract, completions, columns)
        rows = zip(prompts, texts, golds, cut, strict=True)
        return [self._score(*row) for row in rows]

    def _cut(self, columns: Mapping[str, Sequence[Any]], count: int) -> Sequence[bool]:
        ended = self.config.ended
        if ended is None:
            ended = self.config.extract != "tag" and columns.get("truncated") is not None
        if not ended:
            return [False] * count
        return [bool(flag) for flag in column(columns, "truncated", reward="numeric_answer")]

    def _score(self, prompt: Any, text: str, gold: object, cut: bool) -> float | None:
        right = next(filter(None, map(gold_number, gold_texts(gold))), None)
        if right is None:
            return None
        answer = None if cut else self._number(text)
        if answer is None or self._is_left_to_compute(answer, right, prompt):
            return 0.0
        if not self._is_marked_rightly(answer, read_question(prompt_text(prompt))):
            return 0.0
        return float(abs(answer.value - right.value) <= self._tolerance(right.value))

    @staticmethod
    def _is_marked_rightly(answer: Number, question: Question) -> bool:
        """Whether a percent sign or a unit fits the prompt: no 18% and no 18 cents for dollars."""
        if answer.is_percent and not question.is_about("percent"):
            return False
        return all(map(question.fits, answer.units))

    @staticmethod
    def _is_left_to_compute(answer: Number, gold: Number, prompt: Any) -> bool:
        if not answer.is_fraction or gold.is_fraction:
            return False
        return not answer.is_reduced or key(answer.node) in read_question(prompt_text(prompt)).keys

    def _tolerance(self, gold: Fraction) -> Fraction:
        # From the decimal string: 0.1 in a configuration means exactly one tenth.
        relative = Fraction(str(self.config.relative)) * abs(gold)
        return max(Fraction(str(self.config.absolute)), relative)

    def _number(self, text: str) -> Number | None:
        if self.config.extract == "last_number":
            return last_number(outside_thinking(text))
        answer = tagged(text, self.config.tag) if self.config.extract == "tag" else text
        return None if answer is None else whole_number(answer)
