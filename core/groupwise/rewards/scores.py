"""Scores: the rewards of a batch."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from groupwise.advantages import zero_variance, zero_variance_of_steps
from groupwise.rewards.errors import RewardError

Number = TypeVar("Number", int, float)


class Score(NamedTuple):
    """The rewards of one rollout."""

    values: Sequence[float]
    """Of each reward, NaN where it does not apply or failed."""
    failed: bool
    """Whether the rollout failed, or a reward on it."""
    steps: Tensor | None = None
    """[T] float64: as in `Scores`."""
    reason: str | None = None
    """Why it failed."""
    extra: Mapping[str, Any] = {}
    """What rewards logged of it."""


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

    @property
    def rows(self) -> "list[Score]":
        """The scores of each rollout."""
        nothing: list[None] = [None] * len(self.failed)
        reasons = nothing if self.reasons is None else self.reasons
        steps = nothing if self.steps is None else [*self.steps]
        extra = [
            {name: column[row] for name, column in self.extra.items()}
            for row in range(len(nothing))
        ]
        parts = (self.values.tolist(), self.failed.tolist(), steps, reasons, extra)
        return [Score(*row) for row in zip(*parts, strict=True)]

    def with_rows(self, rows: "Sequence[Score]") -> "Scores":
        """Scores of these rollouts, by the same rewards; without what is counted of a batch."""
        reasons = [row.reason for row in rows]
        values = [row.values for row in rows]
        logged = dict.fromkeys(name for row in rows[:1] for name in row.extra)
        names = [name for name in logged if all(name in row.extra for row in rows)]
        return Scores(
            names=self.names,
            weights=self.weights,
            values=torch.tensor(values, dtype=torch.float64).view(len(rows), len(self.names)),
            failed=torch.tensor([row.failed for row in rows], dtype=torch.bool),
            reasons=reasons if any(reasons) else None,
            extra={name: [row.extra[name] for row in rows] for name in names},
            steps=_padded([row.steps for row in rows]),
            judges_steps=self.judges_steps,
            scales=self.scales,
        )

    def select(self, rows: Tensor) -> "Scores":
        """The scores of `rows` (indices or bool), without what is counted of a batch."""
        own = self.rows
        return self.with_rows([own[row] for row in torch.arange(len(own))[rows].tolist()])

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
        joined = parts[0].with_rows([row for part in parts for row in part.rows])
        return replace(
            joined,
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


def _padded(steps: Sequence[Tensor | None]) -> Tensor | None:
    """Steps of rollouts [T] each, padded with NaN to the longest; None if none has any."""
    if all(row is None for row in steps):
        return None
    nothing = torch.empty(0, dtype=torch.float64)
    rows = [nothing if row is None else row for row in steps]
    return pad_sequence(rows, batch_first=True, padding_value=math.nan)
