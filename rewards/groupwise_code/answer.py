"""Answer: the program inside a completion."""

import re

from groupwise_messages.completion import outside_thinking

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+#.-]*)[^\n]*\n", re.MULTILINE)
_PYTHON = ("python", "python3", "py", "")


def program_of(text: str) -> str | None:
    """The Python of the last fenced block outside thinking; without any fence all that is there.

    None where every fence is of another language, or none is closed and it holds nothing.
    """
    text = outside_thinking(text)
    blocks = [code for language, code in _blocks(text) if language.lower() in _PYTHON]
    if blocks:
        return blocks[-1]
    return None if _FENCE.search(text) or not text.strip() else text


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
