"""Errors told to people: a mistake of the user's, in one message without a traceback."""

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
