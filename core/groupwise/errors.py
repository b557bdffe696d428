"""Errors for users: a mistake that they can correct, as one message without a traceback."""

import difflib
from collections.abc import Iterable

from groupwise import secrets


class UserError(ValueError):
    """What was expected, what was received, and what to set; the command line prints the message
    without a traceback. Secrets of this process are masked in it.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(secrets.redacted(str(message)))


def message_of(error: object) -> str:
    """The text of an exception or of another reason, also of one whose `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return f"({type(error).__name__} without a readable message)"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if it has no message."""
    return (message_of(error).strip() or type(error).__name__).splitlines()[0]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """', did you mean "x"?' with the closest known name; "" if none is close."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    # "gpro" is as close to "gspo" as to "grpo", but swapped letters are the commoner mistake.
    close.sort(key=lambda other: sorted(other) != sorted(name))
    return f", did you mean {close[0]!r}?" if close else ""
