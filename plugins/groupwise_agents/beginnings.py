"""Beginnings: whether the episodes that are compared with each other begin alike."""

from collections.abc import Mapping
from copy import copy
from typing import Any

from groupwise.kit import terminal
from groupwise.kit.copies import equal

MOST = 64
"""Groups whose beginnings are remembered, and entries of a list that is compared."""


class Beginnings:
    """Warns once where two episodes of one prompt begin differently: then the advantage of one over
    the other is chance.

    advice: what to do about it, as a clause.
    """

    def __init__(self, name: str, advice: str) -> None:
        self.name, self.advice = name, advice
        self._seen: dict[int, Mapping[str, Any]] = {}
        self._warned = False

    def observe(self, seed: int, beginning: Mapping[str, Any]) -> None:
        """seed: equal for episodes that are compared; beginning: what was seen after the reset."""
        first = self._seen.setdefault(seed, beginning)
        if len(self._seen) > MOST:
            self._seen.pop(next(iter(self._seen)))
        odd = next((n for n, value in beginning.items() if not equal(first.get(n), value)), None)
        if odd is None or self._warned:
            return
        self._warned = True
        terminal.say(
            f"warning: {self.name}: two episodes of the same prompt begin with different {odd} "
            f"({first.get(odd)!r:.80} and {beginning[odd]!r:.80}), so their rewards are not "
            f"comparable; {self.advice}"
        )


def plain_attributes(target: object) -> dict[str, Any]:
    """By name, the attributes of an object that are words, whole numbers or short lists of them."""
    attributes = getattr(target, "__dict__", {}).items()
    return {f"`{name}`": copy(value) for name, value in attributes if _plain(value)}


def _plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= MOST and all(isinstance(each, str | int) for each in value)
    return isinstance(value, str | int)
