"""Tally: the metrics of a step as sums and counts, which are divided once, at its end."""

import math

from accelerate.utils import gather_object
from torch import Tensor


class Tally:
    """Metrics of a step: means with the count that each is over, totals, and largest values.

    Tallies are added, over processes and updates. So every mean is over all that was counted,
    never a mean of means.
    """

    def __init__(self) -> None:
        self._means: dict[str, tuple[float, float]] = {}
        self._totals: dict[str, float] = {}
        self._largest: dict[str, float] = {}

    def mean(self, name: str, total: float, count: float = 1) -> None:
        """Add `count` values with this sum to a mean."""
        before = self._means.get(name, (0.0, 0.0))
        self._means[name] = (before[0] + total, before[1] + count)

    def means_of(self, name: str, values: Tensor, weights: Tensor | None = None) -> None:
        """Add values [B] to a mean, without those that are NaN.

        weights: [B], how often each counts; once if unset.
        """
        known = ~values.isnan()
        weights = known.double() if weights is None else weights.double() * known
        self.mean(name, float((values.nan_to_num() * weights).sum()), float(weights.sum()))

    def total(self, name: str, value: float) -> None:
        """Add to a total."""
        self._totals[name] = self._totals.get(name, 0) + value

    def largest(self, name: str, value: float) -> None:
        """Add a value of which the largest counts."""
        self._largest[name] = max(self._largest.get(name, -math.inf), value)

    def add(self, other: "Tally") -> None:
        """Add another tally."""
        for name, (total, count) in other._means.items():
            self.mean(name, total, count)
        for name, value in other._totals.items():
            self.total(name, value)
        for name, value in other._largest.items():
            self.largest(name, value)

    def finite(self) -> "Tally":
        """The same without what is not finite, and without its count: an update that is skipped
        has no norm. A mean over nothing else is NaN."""
        kept = Tally()
        kept._totals = dict(self._totals)
        kept._means = {n: m if math.isfinite(m[0]) else (0.0, 0.0) for n, m in self._means.items()}
        kept._largest = {n: x if math.isfinite(x) else -math.inf for n, x in self._largest.items()}
        return kept

    def of_all_processes(self) -> "Tally":
        """The sum of this tally and those of the other processes. A collective."""
        whole = Tally()
        for part in gather_object([self]):
            whole.add(part)
        return whole

    def result(self) -> dict[str, float]:
        """The metrics by name."""
        means = {
            n: total / count if count else math.nan for n, (total, count) in self._means.items()
        }
        largest = {n: x if math.isfinite(x) else math.nan for n, x in self._largest.items()}
        return {**means, **self._totals, **largest}
