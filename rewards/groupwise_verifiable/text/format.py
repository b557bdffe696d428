"""Rewards for the format of a completion: thinking and answer in their tags."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from groupwise_messages.completion import judged_texts


class _Format(ABC):
    """A reward that depends on the completion's text only, with the tag that its prompt opened."""

    judges = False

    class Config(BaseModel):
        """No settings."""

        model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, config: Config | None = None) -> None:
        """config: has no settings."""
        self.config = config or self.Config()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        return [self.score(text) for text in judged_texts(completions, columns)]

    @abstractmethod
    def score(self, text: str) -> float:
        """Returns the value of one text."""


class ThinkAnswerFormat(_Format):
    r"""1.0 if the whole completion is thinking and then an answer, each in its tags, else 0.0.

    That is `<think>\n...\n</think>\n<answer>\n...\n</answer>` from the first character to the last
    (DeepSeek-R1, arXiv:2501.12948), with neither part blank and each of `tag_count`'s four tags
    exactly once. open-r1's `format_reward` intends the same, but also accepts empty or repeated
    tags, and any text on the lines after `</answer>`: its pattern ends in `$` with MULTILINE, which
    matches before any line break.
    """

    _start, _middle, _end = "<think>\n", "\n</think>\n<answer>\n", "\n</answer>"

    def score(self, text: str) -> float:
        """Returns 1.0 or 0.0."""
        if not (text.startswith(self._start) and text.endswith(self._end)):
            return 0.0
        inner = text[len(self._start) : -len(self._end)]
        thinking, middle, answer = inner.partition(self._middle)
        full = bool(middle and thinking.strip() and answer.strip())
        return float(full and TagCount().score(text) == 1.0)


class ThinkFormat(_Format):
    """1.0 if the completion is `<think>...</think>` followed by text, each tag once, else 0.0.

    As TRL's `think_format_reward`, which also accepts several `</think>`, and no text after them.
    The thinking may be blank.
    """

    def score(self, text: str) -> float:
        """Returns 1.0 or 0.0."""
        thinking, _, rest = text.partition("</think>")
        opened = thinking.startswith("<think>") and text.count("<think>") == 1
        return float(opened and bool(rest.strip()) and "</think>" not in rest)


class TagCount(_Format):
    r"""0.25 for each of the tags of `think_answer_format` that occurs once: a slope towards it.

    The tags are `<think>\n`, `\n</think>\n`, `\n<answer>\n` and `\n</answer>`, at any place. It
    gives partial credit while a policy learns `think_answer_format`. open-r1's `tag_count_reward`.
    """

    _tags = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")

    def score(self, text: str) -> float:
        """Returns 0, 0.25, 0.5, 0.75 or 1."""
        return sum(0.25 for tag in self._tags if text.count(tag) == 1)
