"""Scores: the rewards of a batch."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from groupwise.advantages import zero_variance, zero_variance_of_steps
from groupwise.rewards.errors import RewardError

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The values of R rewards for B rollouts.

    weights: of each reward in this step; for a constraint its multiplier, negative if the value is
        to be lower.
    scales: values are divided by these before they are weighted; 1 except for constraints, and
        for all if unset.
    values: [B, R] float64, NaN where a reward does not apply or failed; for a process reward the
        sum over its steps.
    failed: [B] bool, completions that failed, or on which a reward failed and was skipped. They
        have no total, and no algorithm receives them; other rewards keep their values there.
    steps: [B, T] float64, the weighted sum of process rewards at the decision where a step ends,
        NaN elsewhere; None if no reward judges steps.
    judges_steps: the names of process rewards.
    seconds, extra: by name, how long rewards took and the columns that they logged.
    metrics: by name, what they logged as numbers: the sum over completions, and their number.
    failures: by reward that failed, a sentence on why it did first.
    failure_counts: by the same names, on how many completions.
    reasons: why each failed completion failed, None for others; None if none failed.
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]
    values: Tensor
    failed: Tensor
    seconds: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    metrics: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    failure_counts: Mapping[str, int] = field(default_factory=dict)
    reasons: Sequence[str | None] | None = None
    steps: Tensor | None = None
    judges_steps: frozenset[str] = frozenset()
    scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.scales:
            object.__setattr__(self, "scales", (1.0,) * len(self.names))

    @cached_property
    def total(self) -> Tensor:
        """[B] float64: sum_k w_k r_k / scale_k over the rewards that apply.

        NaN if none applies, or if the completion failed: a sum without the reward that failed would
        be a wrong one.
        """
        return self._sum(self.values)

    @cached_property
    def outcome(self) -> Tensor:
        """[B] float64: the total without process rewards."""
        return self._sum(self.outcomes)

    @cached_property
    def outcomes(self) -> Tensor:
        """[B, R] float64: the values of rewards that judge whole completions.

        NaN where a reward does not apply or judges steps, and where the completion failed.
        """
        judges = torch.tensor([name in self.judges_steps for name in self.names])
        return self.values.masked_fill(judges | self.failed.unsqueeze(1), math.nan)

    def _sum(self, values: Tensor) -> Tensor:
        factors = self.values.new_tensor(self.weights) / self.values.new_tensor(self.scales)
        nothing = values.isnan().all(dim=1) | self.failed
        return (values * factors).nansum(dim=1).masked_fill(nothing, math.nan)

    def no_signal(self, groups: Tensor) -> Tensor:
        """[B] bool: in the rollout's group all outcomes are equal, and all step rewards."""
        same = zero_variance(self.outcome, groups)
        return same if self.steps is None else same & zero_variance_of_steps(self.steps, groups)

    def column(self, name: str) -> Tensor:
        """[B]: one reward's values."""
        return self.values[:, self.names.index(name)]

    def at_least(self, name: str, threshold: float) -> Tensor:
        """[B]: 1 where one reward's value is at least the threshold, 0 where it is less, NaN where
        it has none. Sums of tenths and the like may be 1e-9 below."""
        values = self.column(name)
        return (values >= threshold - 1e-9).to(values.dtype).masked_fill(values.isnan(), math.nan)

    def select(self, rows: Tensor) -> "Scores":
        """The scores of `rows` (indices or bool), without seconds, extra and metrics."""
        return Scores(
            names=self.names,
            weights=self.weights,
            values=self.values[rows],
            failed=self.failed[rows],
            reasons=None if self.reasons is None else _picked(self.reasons, rows),
            steps=None if self.steps is None else self.steps[rows],
            judges_steps=self.judges_steps,
            scales=self.scales,
        )

    @staticmethod
    def concat(parts: Sequence["Scores"]) -> "Scores":
        """One batch of all parts.

        Seconds, metrics and counts are summed; the first failure of each reward is kept. Raises
        RewardError if a reward returned step rewards for some completions and numbers for others.
        """
        first = parts[0]
        if len(parts) == 1:
            return first
        judges_steps = frozenset[str]().union(*(part.judges_steps for part in parts))
        _check_steps(parts, judges_steps)
        return Scores(
            names=first.names,
            weights=first.weights,
            values=torch.cat([part.values for part in parts]),
            failed=torch.cat([part.failed for part in parts]),
            steps=_joined([part.steps for part in parts], [len(part.values) for part in parts]),
            judges_steps=judges_steps,
            scales=first.scales,
            seconds=_sums([part.seconds for part in parts]),
            extra=_columns([part.extra for part in parts]),
            metrics=_pairs([part.metrics for part in parts]),
            failures={n: why for part in reversed(parts) for n, why in part.failures.items()},
            failure_counts=_sums([part.failure_counts for part in parts]),
            reasons=_joined_reasons(parts),
        )


def _check_steps(parts: Sequence[Scores], judges_steps: Collection[str]) -> None:
    for part, name in product(parts, sorted(judges_steps)):
        if name not in part.judges_steps and not part.column(name).isnan().all():
            raise RewardError(
                f"reward {name!r} returned lists of step rewards for some completions and numbers "
                f"for others: it must return the same for all, or None"
            )


def _picked(column: Sequence[Any], rows: Tensor) -> list[Any]:
    return [column[row] for row in torch.arange(len(column))[rows].tolist()]


def _joined_reasons(parts: Sequence[Scores]) -> list[str | None] | None:
    if all(part.reasons is None for part in parts):
        return None
    return [why for part in parts for why in part.reasons or [None] * len(part.failed)]


def _sums(parts: Sequence[Mapping[str, Number]]) -> dict[str, Number]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0) for part in parts) for name in names}


def _pairs(parts: Sequence[Mapping[str, tuple[float, int]]]) -> dict[str, tuple[float, int]]:
    sums = _sums([{name: total for name, (total, _) in part.items()} for part in parts])
    counts = _sums([{name: count for name, (_, count) in part.items()} for part in parts])
    return {name: (sums[name], counts[name]) for name in sums}


def _columns(parts: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    """The columns that all parts have."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: [value for part in parts for value in part[name]] for name in names}


def _joined(steps: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """Steps of several batches, padded with NaN to the longest; None if no batch has any."""
    if all(part is None for part in steps):
        return None
    each = [
        torch.empty(size, 0, dtype=torch.float64) if part is None else part
        for part, size in zip(steps, sizes, strict=True)
    ]
    widest = max(part.shape[1] for part in each)
    return torch.cat([pad(part, (0, widest - part.shape[1]), value=math.nan) for part in each])
