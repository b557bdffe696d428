"""Scores: the rewards of a batch."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, TypeVar

import torch
from torch import Tensor

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
        """The scores of `rows` (indices or bool), without what is counted of a batch."""
        index = torch.arange(len(self.failed))[rows]
        chosen = index.tolist()
        reasons = [self.reasons[row] for row in chosen] if self.reasons else []
        return replace(
            self.bare,
            values=self.values[index],
            failed=self.failed[index],
            extra={name: [column[row] for row in chosen] for name, column in self.extra.items()},
            reasons=reasons if any(reasons) else None,
            steps=None if self.steps is None or not chosen else self.steps[index],
        )

    @property
    def bare(self) -> "Scores":
        """What algorithms read of them, small enough to send: without what rewards logged."""
        return Scores(
            names=self.names,
            weights=self.weights,
            values=self.values,
            failed=self.failed,
            steps=self.steps,
            judges_steps=self.judges_steps,
            scales=self.scales,
        )

    @staticmethod
    def concat(parts: Sequence["Scores"]) -> "Scores":
        """One batch of all parts.

        Seconds, metrics and counts are summed; the first failure of each reward is kept. Raises
        RewardError if a reward returned step rewards for some completions and numbers for others.
        """
        if len(parts) == 1:
            return parts[0]
        judges_steps = frozenset[str]().union(*(part.judges_steps for part in parts))
        _check_steps(parts, judges_steps)
        filled = [part for part in parts if len(part.failed)]
        reasons = [why for part in filled for why in part.reasons or [None] * len(part.failed)]
        logged = set.intersection(*({*part.extra} for part in filled)) if filled else set()
        return replace(
            parts[0],
            values=torch.cat([part.values for part in parts]),
            failed=torch.cat([part.failed for part in parts]),
            reasons=reasons if any(reasons) else None,
            extra={
                name: [value for part in filled for value in part.extra[name]]
                for name in (filled[0].extra if filled else ())
                if name in logged
            },
            steps=_steps(filled),
            judges_steps=judges_steps,
            seconds=_sums([part.seconds for part in parts]),
            metrics=_pairs([part.metrics for part in parts]),
            failures={n: why for part in reversed(parts) for n, why in part.failures.items()},
            failure_counts=_sums([part.failure_counts for part in parts]),
        )


def _check_steps(parts: Sequence[Scores], judges_steps: Collection[str]) -> None:
    for part, name in product(parts, sorted(judges_steps)):
        if name not in part.judges_steps and not part.column(name).isnan().all():
            raise RewardError(
                f"reward {name!r} returned lists of step rewards for some completions and numbers "
                f"for others: it must return the same for all, or None"
            )


def _sums(parts: Sequence[Mapping[str, Number]]) -> dict[str, Number]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0) for part in parts) for name in names}


def _pairs(parts: Sequence[Mapping[str, tuple[float, int]]]) -> dict[str, tuple[float, int]]:
    sums = _sums([{name: total for name, (total, _) in part.items()} for part in parts])
    counts = _sums([{name: count for name, (_, count) in part.items()} for part in parts])
    return {name: (sums[name], counts[name]) for name in sums}


def _steps(parts: Sequence[Scores]) -> Tensor | None:
    """Steps of all parts [B, T], padded with NaN to the longest; None if none has any."""
    lengths = [part.steps.shape[1] for part in parts if part.steps is not None]
    if not lengths:
        return None
    joined = []
    for part in parts:
        steps = part.values.new_full((len(part.failed), max(lengths)), math.nan)
        if part.steps is not None:
            steps[:, : part.steps.shape[1]] = part.steps
        joined.append(steps)
    return torch.cat(joined)
