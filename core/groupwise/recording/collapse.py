"""Collapse: metrics of steps that leave a run's own past, before its reward shows it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from groupwise.storage.metrics import finite

RECENT, APART = 5, 10
"""The median of so many last steps is compared with the steps before so many others: so one odd
step is none, and a change within fifteen is one."""
LEAST_PAST = 10
"""Steps of the past without which nothing is compared."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """How far a metric may leave the range of its past: by these factors above its largest value
    and below its smallest; and least, the smallest value that is suspected above."""

    above: float
    below: float | None = None
    least: float = 0.0
    meaning: str

    def left(self, value: float, low: float, high: float) -> bool:
        """Whether a value is so far outside this range."""
        rose = value > self.above * high and value >= self.least
        return rose or (self.below is not None and value < low / self.below)


LIMITS = {
    "kl": Limit(above=10, least=0.1, meaning="the policy runs away from its reference"),
    "grad_norm": Limit(above=10, meaning="updates have become much larger"),
    "entropy": Limit(above=5, below=10, meaning="what the policy samples has changed its nature"),
    "truncated": Limit(above=3, least=0.5, meaning="completions no longer come to their end"),
}
"""In healthy runs of the examples the largest factors were 6 for kl, 2 for grad_norm, 1.3 above and
2.5 below for entropy."""


class Collapse:
    """Watches the metrics of `LIMITS`, of one learner.

    began: by metric, the first of the steps since when it has been outside the range of its past.
    suspected: metrics whose last value, of one step, is as far outside.
    """

    def __init__(self) -> None:
        self.began: dict[str, int] = {}
        self.suspected: set[str] = set()
        self._past: dict[str, list[tuple[int, float]]] = {}

    def warnings(self, step: int, metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """By metric that has left its past, a sentence."""
        for name, limit in LIMITS.items():
            value = metrics.get(name)
            if value is None or not abs(value) < float("inf"):
                continue
            values = self._past.setdefault(name, [])
            values.append((step, float(finite(float(value)))))  # as it is read when a run goes on
            past = [value for _, value in values[: -RECENT - APART]]
            if len(past) < LEAST_PAST or name in self.began:
                continue
            now = median(value for _, value in values[-RECENT:])
            low, high = min(past), max(past)
            (self.suspected.add if limit.left(value, low, high) else self.suspected.discard)(name)
            if limit.left(now, low, high):
                self.began[name] = _beginning(values, low, high, rose=now > high)
                text = (
                    f"{name} has left its own past since step {self.began[name]}: it is {now:.3g} "
                    f"(median of {RECENT} steps), and was {low:.3g} to {high:.3g} in the first "
                    f"{len(past)}; {limit.meaning}. Look at samples of these steps; a lower "
                    f"train.learning_rate or a KL term (algorithm.beta) may prevent it"
                )
                yield name, text


def _beginning(values: list[tuple[int, float]], low: float, high: float, *, rose: bool) -> int:
    """The first of the last steps that are all outside the range, but for one in between."""
    outside = [(step, value > high if rose else value < low) for step, value in values]
    first, inside = outside[-1][0], 0
    for step, is_outside in reversed(outside):
        inside = 0 if is_outside else inside + 1
        if inside > 1:
            break
        first = step if is_outside else first
    return first
