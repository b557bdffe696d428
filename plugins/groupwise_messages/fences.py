"""Fences: the blocks of code in a text of Markdown."""

import re

FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+#.-]*)[^\n]*\n", re.MULTILINE)
"""The line that begins a block: its mark, and its language if it has one."""


def blocks(text: str) -> list[tuple[str, str]]:
    """Returns language and content of each fenced block, the last one also if it is not closed."""
    found, position = [], 0
    while opening := FENCE.search(text, position):
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
