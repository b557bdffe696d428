"""Answer: the program inside a completion."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_OTHERS = ("tool", "user", "system")
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+#.-]*)[^\n]*\n", re.MULTILINE)
_PYTHON = ("python", "python3", "py", "")


def program_of(completion: str | Sequence[Mapping[str, Any]]) -> str | None:
    """The Python of the last fenced block after the thinking; without any fence the whole text.

    None where every fence is of another language, or none is closed and it holds nothing.
    """
    text = _text(completion).rpartition("</think>")[2]
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


def _text(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """The text itself, or that of the policy's last message."""
    if isinstance(completion, str):
        return completion
    own = [each for each in completion if each.get("role") not in _OTHERS]
    content = own[-1].get("content") if own else None
    return content if isinstance(content, str) else ""
