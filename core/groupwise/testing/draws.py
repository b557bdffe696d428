"""Draws: a sampler asked for the same rows again and again; what a policy and an engine share."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose, Sampler
from groupwise.testing import compare

Rows = Sequence[Mapping[str, Any]]


class Draws:
    """limit: how far values may be apart: 1e-4 where the sampler says that it is `exact`, else
    0.05."""

    def __init__(self, sampler: Sampler, rows: Rows, size: int) -> None:
        if len(rows) < 2:
            raise ValueError(f"a check needs two rows or more, received {len(rows)}")
        self.sampler, self.rows, self.size = sampler, rows, size
        self.limit = 1e-4 if sampler.exact else 0.05

    @torch.no_grad()
    def sample(
        self, rows: Rows | None = None, *, first: int = 0, purpose: Purpose = "train"
    ) -> Rollouts:
        """Rollouts of all rows, or of some; their seeds are counted from `first`."""
        rows = self.rows if rows is None else rows
        seeds = [1000 + first + number for number in range(len(rows) * self.size)]
        return self.sampler.sample(rows, group_size=self.size, seeds=seeds, purpose=purpose)

    def misplaced(self, rollouts: Rollouts) -> str | None:
        """What is wrong with the groups and prompts of rollouts of all rows."""
        expected = [number for number in range(len(self.rows)) for _ in range(self.size)]
        if rollouts.groups.tolist() != expected:
            return f"groups are {rollouts.groups.tolist()}, expected {expected}"
        pairs = zip(rollouts.prompts, expected, strict=True)
        if any(row != self.rows[group] for row, group in pairs):
            return "prompts are not the rows, each `group_size` times"
        return None

    def apart_alone(self, together: Rollouts) -> str | None:
        """How a row's rollouts differ when nothing is sampled beside them."""
        for number, row in enumerate(self.rows):
            first = number * self.size
            alone = self.sample([row], first=first)
            expected = together.select(range(first, first + self.size))
            apart, what = compare.rollouts_gap(alone, expected)
            if apart > self.limit:
                return (
                    f"row {number} sampled alone and beside others, with the same seeds, differs "
                    f"in {what} by {apart:.2g}"
                )
        return None
