"""UserError: a mistake of the user's, told in one message without a traceback."""


class UserError(ValueError):
    """What was expected, what was found, and what to do; the command line prints just that."""
