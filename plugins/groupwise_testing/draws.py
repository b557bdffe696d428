"""Draws: samples of a policy or an engine for the same rows, again and again."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.rollouts import Rollouts
from groupwise.sampler import GroupSampler, Purpose, Sampler
from groupwise_testing import compare

Rows = Sequence[Mapping[str, Any]]


class Draws:
    """A sampler and the rows to sample; limit: of differences, 1e-4 if it is `exact`, else 0.05."""

    def __init__(self, sampler: Sampler, rows: Rows, size: int) -> None:
        if len(rows) < 2:
            raise ValueError(f"a check needs two rows or more, received {len(rows)}")
        self.sampler, self.rows, self.size = sampler, rows, size
        self.limit = 1e-4 if sampler.exact else 0.05

    @torch.no_grad()
    def sample(
        self, rows: Rows | None = None, *, first: int = 0, purpose: Purpose = "train"
    ) -> Rollouts:
        """Rollouts of all rows, or of some; seeds are 1000 + `first`, and so on."""
        rows = self.rows if rows is None else rows
        seeds = [1000 + first + number for number in range(len(rows) * self.size)]
        return self.sampler.sample(rows, group_size=self.size, seeds=seeds, purpose=purpose)

    def misplaced(self, rollouts: Rollouts) -> str | None:
        """What is wrong with groups and prompts of rollouts of all rows; None if nothing is."""
        expected = [number for number in range(len(self.rows)) for _ in range(self.size)]
        if rollouts.groups.tolist() != expected:
            return f"groups are {rollouts.groups.tolist()}, expected {expected}"
        pairs = zip(rollouts.prompts, expected, strict=True)
        if any(row != self.rows[group] for row, group in pairs):
            return "prompts are not the rows, each `group_size` times"
        return None

    def difference_alone(self, together: Rollouts) -> str | None:
        """How a row's rollouts change if it is sampled alone, or its group in several calls; None
        if they do not."""
        for number, row in enumerate(self.rows):
            first = number * self.size
            parts = [(range(first, first + self.size), self.sample([row], first=first))]
            parts += self._one_by_one(row, first)
            for rows, alone in parts:
                difference, what = compare.rollouts_gap(alone, together.select(rows))
                if difference > self.limit:
                    which = "" if len(rows) > 1 else f"rollout {rows[0]} of "
                    return (
                        f"{which}row {number} sampled alone and with others, with the same seeds, "
                        f"differs in {what} by {difference:.2g}"
                    )
        return None

    @torch.no_grad()
    def _one_by_one(self, row: Mapping[str, Any], first: int) -> list[tuple[range, Rollouts]]:
        """Of a `GroupSampler`: the rollouts of a row's group, each in a call of its own."""
        if not isinstance(self.sampler, GroupSampler):
            return []
        shared, seeds = [1000 + first], range(first, first + self.size)
        return [
            (
                range(number, number + 1),
                self.sampler.sample([row], group_size=1, seeds=[1000 + number], group_seeds=shared),
            )
            for number in seeds
        ]

    def log_prob_gap(self, ours: Tensor, rollouts: Rollouts) -> float:
        """|policy - sampler| of log-probs: the largest if the sampler is `exact`, else the mean."""
        assert rollouts.sampler_log_probs is not None
        one, other = (
            compare.at_decisions(values, rollouts.mask).double()
            for values in (ours, rollouts.sampler_log_probs)
        )
        gaps = (one - other).abs().nan_to_num(nan=math.inf)
        return float(gaps.max() if self.sampler.exact else gaps.mean())

    def mismatch(self, ours: Tensor | None, rollouts: Rollouts) -> str | None:
        """How the sampler's log-probs differ from those of the policy; None if they do not, or if
        neither has any."""
        theirs = rollouts.sampler_log_probs
        if ours is None or theirs is None:
            missing = self.sampler.exact and ours is not theirs
            return "`exact` is True, and there are no log-probs" if missing else None
        gap = self.log_prob_gap(ours, rollouts)
        if gap <= self.limit:
            return None
        return (
            f"the {'largest' if self.sampler.exact else 'mean'} gap between log-probs of `forward` "
            f"and of `sample` is {gap:.3g} nats, at most {self.limit:g} is allowed"
        )
