"""The form of a completion: its thinking and its answer in their tags."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from groupwise_verifiable.completion import content


class _Format(ABC):
    """A reward that looks at the text alone."""

    judges = True

    class Config(BaseModel):
        """There is nothing to set."""

        model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, config: Config | None = None) -> None:
        """Takes the settings, of which there are none."""
        self.config = config or self.Config()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        return [self.score(content(completion)) for completion in completions]

    @abstractmethod
    def score(self, text: str) -> float:
        """Returns the value of one text."""


class ThinkAnswerFormat(_Format):
    r"""1.0 when the whole completion is thinking and then an answer, each in its tags, else 0.0.

    That is `<think>\n...\n</think>\n<answer>\n...\n</answer>` from the first character to the
    last (DeepSeek-R1, arXiv:2501.12948), where neither part is blank and each of the four tags that
    `tag_count` counts is there once. open-r1's `format_reward` means the same, but its expression
    takes tags and nothing in them, or several of each, and whatever follows on the lines after
    `</answer>`: it ends in `$` with MULTILINE set, which holds before any line break.
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
    """1.0 when the completion starts with its only `<think>`, closes it once and goes on, else 0.0.

    TRL's `think_format_reward`, which also takes several `</think>`, and nothing behind them. What
    is inside of them may be blank.
    """

    def score(self, text: str) -> float:
        """Returns 1.0 or 0.0."""
        thinking, _, rest = text.partition("</think>")
        opened = thinking.startswith("<think>") and text.count("<think>") == 1
        return float(opened and bool(rest.strip()) and "</think>" not in rest)


class TagCount(_Format):
    r"""0.25 for each of the tags of `think_answer_format` that occurs once: a slope towards it.

    The tags are `<think>\n`, `\n</think>\n`, `\n<answer>\n` and `\n</answer>`, wherever they are:
    a slope towards `think_answer_format`. open-r1's `tag_count_reward`.
    """

    _tags = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")

    def score(self, text: str) -> float:
        """Returns 0, 0.25, 0.5, 0.75 or 1."""
        return sum(0.25 for tag in self._tags if text.count(tag) == 1)
