"""Layout: lines for a terminal of some width, or for a pipe."""

import textwrap

from rich.text import Text


def paragraph(text: str, width: int | None, *, indent: int = 0, first: str | None = None) -> str:
    """The text in lines of at most `width`, each indented; in one line where there is no width.

    first: what stands at the beginning of the first line, in place of its indent.
    """
    head = " " * indent if first is None else first
    if width is None:
        return f"{head}{text}\n"
    # A window too narrow for two columns breaks words rather than the layout.
    width = max(width, indent + 20)
    lines = textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * indent)
    return "\n".join([*(lines or [head]), ""])


def heading(title: str, remark: str = "") -> Text:
    """A line in bold, with a remark that is not."""
    return Text.assemble((title, "bold"), f"  {remark}" if remark else "", "\n")
