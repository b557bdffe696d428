"""Tally: the metrics of a step as sums and counts, which are divided once, at its end."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

Number = Any
"""A number, or a scalar that stays on its device until a tally is gathered."""


class Tally:
    """Metrics of a step: means with the count that each is over, totals, and largest values.

    Tallies are added, over processes and updates. So every mean is over all that was counted,
    never a mean of means. Scalars of a device are summed there, in float64 if it supports that, and
    are read once, by `of_all_processes`, since every read waits until the device has finished its
    queue.
    """

    def __init__(self) -> None:
        self._means: dict[str, tuple[Number, Number]] = {}
        self._totals: dict[str, Number] = {}
        self._largest: dict[str, Number] = {}

    def mean(self, name: str, total: Number, count: Number = 1) -> None:
        """Add `count` values with this sum to a mean."""
        before = self._means.get(name, (0.0, 0.0))
        self._means[name] = (before[0] + _exact(total), before[1] + _exact(count))

    def means_of(self, name: str, values: Tensor, weights: Tensor | None = None) -> None:
        """Add values [B] to a mean, without those that are NaN.

        weights: [B], how often each counts; once if unset.
        """
        known = ~values.isnan()
        weights = known.double() if weights is None else weights.double() * known
        self.mean(name, float((values.nan_to_num() * weights).sum()), float(weights.sum()))

    def decisions(self, mask: Tensor, values: Mapping[str, Tensor]) -> None:
        """Add values [b, t] each to means over the decisions of `mask` [b, t]."""
        count = _exact(mask.sum())
        for name, value in values.items():
            self.mean(name, value.masked_fill(~mask, 0.0).sum(), count)

    def total(self, name: str, value: Number) -> None:
        """Add to a total."""
        self._totals[name] = self._totals.get(name, 0) + _exact(value)

    def largest(self, name: str, value: Number) -> None:
        """Add a value of which the largest counts."""
        before, value = self._largest.get(name, -math.inf), _exact(value)
        if isinstance(value, Tensor):
            self._largest[name] = value.clamp(min=before)
        else:
            self._largest[name] = max(before, value)

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
        for part in gather_object([self._read()]):
            whole.add(part)
        return whole

    def result(self) -> dict[str, float]:
        """The metrics by name, after `of_all_processes` if there are scalars of a device."""
        means = {
            n: total / count if count else math.nan for n, (total, count) in self._means.items()
        }
        largest = {n: x if math.isfinite(x) else math.nan for n, x in self._largest.items()}
        return {**means, **self._totals, **largest}

    def _read(self) -> "Tally":
        """The same in numbers, by one read of the device."""
        pairs = self._means.values()
        values = [*(x for pair in pairs for x in pair), *self._totals.values()]
        tensors = [x for x in (*values, *self._largest.values()) if isinstance(x, Tensor)]
        numbers = iter(torch.stack(tensors).tolist() if tensors else [])

        def read(value: Number) -> float:
            return next(numbers) if isinstance(value, Tensor) else value

        tally = Tally()
        tally._means = {n: (read(total), read(count)) for n, (total, count) in self._means.items()}
        tally._totals = {n: read(value) for n, value in self._totals.items()}
        tally._largest = {n: read(value) for n, value in self._largest.items()}
        return tally


def _exact(value: Number) -> Number:
    """A scalar without its graph, in the best precision of its device."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)
