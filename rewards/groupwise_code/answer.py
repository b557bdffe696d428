"""Answer: the program inside a completion."""

from collections.abc import Sequence
from typing import NamedTuple

from groupwise_messages.completion import outside_thinking
from groupwise_messages.fences import FENCE, blocks
from groupwise_sandbox.languages import named


class Answer(NamedTuple):
    """A program as its text."""

    language: str
    """A `groupwise_code.problem.Language`."""
    code: str


def answer_of(text: str, languages: Sequence[str]) -> Answer | None:
    """The last fenced block outside thinking in one of these languages; without any fence all that
    is there. What names no language is of the first.

    None where every fence is of another language, or none is closed and it holds nothing.
    """
    text = outside_thinking(text)
    for name, code in reversed(blocks(text)):
        language = named(name) if name else languages[0]
        if language is not None and language in languages:
            return Answer(language, code)
    is_empty = FENCE.search(text) or not text.strip()
    return None if is_empty else Answer(languages[0], text)
