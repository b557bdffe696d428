"""Streams: an iterator of one process, drawn from in another one as its values are needed."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

SINGLE, LARGEST = 16, 1024
"""Values that are drawn one by one, as a test of a generator may count them; later they are drawn
in batches, each twice as large, up to the largest."""


class Stream:
    """An iterator that is drawn from in batches; an error comes after the values before it."""

    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values
        self._error: Exception | None = None

    def take(self, most: int) -> list[Any]:
        """The next values; none at its end. Raises what the iterator raises."""
        if self._error is not None:
            raise self._error
        taken = list[Any]()
        try:
            for value in islice(self._values, most):
                taken.append(value)
        except Exception as error:
            if not taken:
                raise
            self._error = error
        return taken


def drawn(take: Callable[[int], Sequence[Any]]) -> Iterator[Any]:
    """The values of a stream of another process; take: gives the next ones, at most so many."""
    count = 0
    while values := take(1 if count < SINGLE else min(count, LARGEST)):
        yield from values
        count += len(values)
