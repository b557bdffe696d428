"""Errors told to people: a mistake of the user's, in one message without a traceback."""

import difflib
from collections.abc import Iterable

from groupwise import secrets


class UserError(ValueError):
    """What was expected, what was found, and what to do; the command line prints just that.

    A secret that the message would show is masked in it, whoever wrote the message.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(secrets.redacted(str(message)))


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """', did you mean "x"?' with the closest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    # "gpro" is as near to "gspo" as to "grpo", but letters are swapped more often than mistaken.
    close.sort(key=lambda other: sorted(other) != sorted(name))
    return f", did you mean {close[0]!r}?" if close else ""
