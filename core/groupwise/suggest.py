"""did_you_mean: the tail of an error about a misspelt name."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """', did you mean "x"?' with the closest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    # "gpro" is as near to "gspo" as to "grpo", but letters are swapped more often than mistaken.
    close.sort(key=lambda other: sorted(other) != sorted(name))
    return f", did you mean {close[0]!r}?" if close else ""
