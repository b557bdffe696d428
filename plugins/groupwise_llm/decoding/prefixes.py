"""Prefix cache: keys and values of contexts whose turn has ended, for the turn that follows."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import DynamicCache


@dataclass(frozen=True, eq=False)
class Part:
    """The cache of some rows; valid: [n, s] bool, its positions that have a token of the row."""

    cache: DynamicCache
    valid: Tensor

    @property
    def tokens(self) -> int:
        """The memory that it takes, in tokens."""
        return self.valid.numel()


@dataclass(frozen=True)
class Prefix:
    """A row of a part, which has the keys and values of the first `length` tokens of a context."""

    part: Part
    row: int
    length: int


class PrefixCache:
    """At most so many tokens; what was added first is dropped first.

    A context that is not in it, any more or at all, is computed anew: it changes no result beyond
    rounding.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._weights: Hashable = None
        self._prefixes: dict[bytes, Prefix] = {}

    def __len__(self) -> int:
        return len(self._prefixes)

    def follow(self, weights: Hashable) -> None:
        """Drop everything that other weights computed; weights: equal only if they are the same."""
        if weights != self._weights:
            self._weights, self._prefixes = weights, {}

    def take(self, contexts: Sequence[Tensor], drawn: Sequence[int]) -> list[Prefix | None]:
        """The prefix of each context, None where there is none; they leave the cache.

        drawn: the number of each one's tokens up to the last one that was drawn, 0 without any.
        """
        keys = [_key(own[:count]) for own, count in zip(contexts, drawn, strict=True)]
        prefixes = [self._prefixes.get(key) for key in keys]
        for key in keys:
            self._prefixes.pop(key, None)
        return prefixes

    def add(self, part: Part | None, contexts: Sequence[Tensor | None]) -> None:
        """Keep the rows of a part, which are all but the last token of these contexts; None for a
        row that is not kept."""
        if part is None:
            return
        for row, context in enumerate(contexts):
            if context is not None:
                key = _key(context)
                self._prefixes.pop(key, None)
                self._prefixes[key] = Prefix(part, row, len(context) - 1)
        self.shrink(self.most)

    def shrink(self, most: int) -> None:
        """Drop the oldest parts, so that the rest takes at most so many tokens."""
        parts = {id(own.part): own.part for own in reversed(self._prefixes.values())}
        total, kept = 0, set()
        for key, part in parts.items():
            total += part.tokens
            if total > most:
                break
            kept.add(key)
        self._prefixes = {key: own for key, own in self._prefixes.items() if id(own.part) in kept}


def _key(ids: Tensor) -> bytes:
    return ids.numpy().tobytes()
