"""Docstrings as Markdown: lines `name: what it is` become a list.

Docstrings here explain names by paragraphs whose lines begin with `name:` or `name, other:` and are
indented where they go on. Markdown would join these lines.
"""

import re
from typing import Any

import griffe

NAMES = re.compile(r"^((?:\*{0,2}[a-z_]\w*, )*\*{0,2}[a-z_]\w*): ", re.MULTILINE)


def as_markdown(text: str) -> str:
    """The text of a docstring; a sentence that goes on with "word: " begins no entry."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        NAMES.sub(r"- **`\1`**: ", paragraph) if NAMES.match(paragraph) else paragraph
        for paragraph in paragraphs
    )


class NamesAsLists(griffe.Extension):
    """Loaded by mkdocstrings, see mkdocs.yml."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
