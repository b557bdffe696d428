"""Accepted: a reward that compares an answer, as words, with one or several gold answers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from groupwise_messages.completion import content, judged_texts, outside_thinking, tagged
from groupwise_verifiable.columns import accepted_texts, column


class AcceptedConfig(BaseModel):
    """Where answers and accepted answers stand: for rewards that compare them as words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gold: str = Field(
        default="answer",
        description="Column with the gold answers; any of a list is right, as of the mappings "
        "that TriviaQA, SQuAD and Search-R1 publish.",
    )
    extract: Literal["whole", "tag", "last_line"] = Field(
        default="whole",
        description="The answer: the whole completion, the content of a tag, or the last line.",
    )
    tag: str = Field(
        default="answer", min_length=1, description="The tag's name for `extract: tag`."
    )


class Accepted(ABC):
    """A reward that gives the best value that an answer has for any of a row's accepted answers;
    None where there is none."""

    name: ClassVar[str]

    def __init__(self, config: AcceptedConfig) -> None:
        self.config = config

    @property
    def required_columns(self) -> Mapping[str, str]:
        return {"gold": self.config.gold}

    def gold_completion(self, row: Mapping[str, Any]) -> str | None:
        """Returns the first gold answer as the completion that states it."""
        gold = next(iter(accepted_texts(row.get(self.config.gold))), None)
        return stated(gold, self.config.extract, self.config.tag)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        golds = column(columns, self.config.gold, reward=self.name)
        texts = judged(self.config.extract, completions, columns)
        return [self._best(text, gold) for text, gold in zip(texts, golds, strict=True)]

    def _best(self, text: str, gold: Any) -> float | None:
        try:
            accepted = accepted_texts(gold)
        except ValueError:  # `gold_completion` raises it before the run
            return None
        answer = self._extracted(text)
        if answer is None:
            return 0.0 if accepted else None
        return max((self.score(answer, folded(each)) for each in accepted), default=None)

    @abstractmethod
    def score(self, answer: str, gold: str) -> float:
        """Returns the value of an answer, 0 to 1, if this one is accepted."""

    def _extracted(self, text: str) -> str | None:
        if self.config.extract == "tag":
            return tagged(text, self.config.tag)
        return last_line(outside_thinking(text)) if self.config.extract == "last_line" else text


def judged(
    extract: str, completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
) -> list[str]:
    """Returns the texts to extract answers from."""
    if extract == "whole":
        return [content(completion) for completion in completions]
    return judged_texts(completions, columns)


def stated(gold: str | None, extract: str, tag: str) -> str | None:
    """Returns a gold answer as the completion that states it."""
    return f"<{tag}>{gold}</{tag}>" if gold is not None and extract == "tag" else gold


def last_line(text: str) -> str:
    """Returns the last line that is not blank, stripped; "" if there is none."""
    lines = text.rstrip().splitlines()
    return lines[-1].strip() if lines else ""


def folded(text: str) -> str:
    """Returns the text stripped, with every run of white space as one space."""
    return " ".join(text.split())
