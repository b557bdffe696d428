"""Encoding: which one a file that is not UTF-8 may have."""

import codecs
from pathlib import Path

MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
HEAD = 1000
"""Bytes that tell the encoding."""


def encoding_hint(path: Path) -> str:
    """The likely encoding of a file that is not UTF-8, and what to do, as the end of a sentence."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    name = "utf-16" if head.startswith(MARKS) else "cp1252"
    return (
        f"; expected UTF-8. If it is {name}, set prompts.options: {{encoding: {name}}}, or save it "
        f"as UTF-8"
    )
