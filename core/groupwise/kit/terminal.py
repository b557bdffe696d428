"""Terminal: what is said to the person who started a command, in words that may be others'."""

import sys

from groupwise.kit import secrets

_ESCAPED = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in b"\n\t"
}
"""The control characters of ASCII and of Latin-1: with them a text can move the cursor, clear the
screen, rename the window and write to the clipboard."""


def printable(text: str) -> str:
    """The string with its control characters as escapes, but for tabs and ends of lines: a row, a
    completion or an error of a tool prints as what it is, and does nothing to a terminal."""
    return text.translate(_ESCAPED)


def say(text: str) -> None:
    """Print a note or a warning to the standard error, at once; secrets are masked."""
    print(printable(secrets.redacted(text)), file=sys.stderr, flush=True)
