"""Errors told to people: a mistake of the user's, in one message without a traceback."""


class UserError(ValueError):
    """What was expected, what was found, and what to do; the command line prints just that."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
