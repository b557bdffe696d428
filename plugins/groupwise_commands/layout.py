"""Layout: text in lines for a terminal or a pipe."""

import textwrap

from rich.text import Text


def paragraph(text: str, width: int | None, *, indent: int = 0, first: str | None = None) -> str:
    """The text in lines of at most `width`, each indented; in one line if `width` is None.

    first: replaces the indent of the first line.
    """
    head = " " * indent if first is None else first
    if width is None:
        return f"{head}{text}\n"
    # In a very narrow window words are broken, but the columns stay.
    width = max(width, indent + 20)
    lines = textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * indent)
    return "\n".join([*(lines or [head]), ""])


def heading(title: str, remark: str = "") -> Text:
    """A line with a bold title and a plain remark."""
    return Text.assemble((title, "bold"), f"  {remark}" if remark else "", "\n")
