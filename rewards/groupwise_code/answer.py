"""Answer: the program inside a completion."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from groupwise_messages.completion import outside_thinking
from groupwise_sandbox.languages import named

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+#.-]*)[^\n]*\n", re.MULTILINE)


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
    for name, code in reversed(_blocks(text)):
        language = named(name) if name else languages[0]
        if language is not None and language in languages:
            return Answer(language, code)
    is_empty = _FENCE.search(text) or not text.strip()
    return None if is_empty else Answer(languages[0], text)


def _blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of each fenced block, the last one also if it is not closed."""
    found, position = [], 0
    while opening := _FENCE.search(text, position):
        mark, language = opening.groups()
        closing = re.compile(rf"^[ \t]*{re.escape(mark)}[ \t]*$", re.MULTILINE).search(
            text, opening.end()
        )
        end = closing.start() if closing else len(text)
        found.append((language, text[opening.end() : end]))
        if closing is None:
            break
        position = closing.end()
    return found
