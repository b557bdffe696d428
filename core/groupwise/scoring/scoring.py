"""Scoring: one batch of rollouts that is being scored."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.outcome import Outcome

Answer = Callable[[], Any]
"""What waits for a reward's answer, or makes the call and gives it."""


class Scoring:
    """What rewards are asked of one batch: those elsewhere are at it, those of this thread wait.

    outcomes: one for each reward; weights, scales: what each counts, as in Scores; here: those
    whose call is made in this thread; elsewhere: those whose call has begun.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        outcomes: Sequence[Outcome],
        *,
        weights: tuple[float, ...],
        scales: tuple[float, ...],
        here: Sequence[tuple[Outcome, Answer]],
        elsewhere: Sequence[tuple[Outcome, Answer]],
    ) -> None:
        self.rollouts, self.outcomes = rollouts, outcomes
        self.weights, self.scales = weights, scales
        self._here, self._elsewhere = here, elsewhere

    def call(self) -> None:
        """Make the calls of this thread. Raises RewardError for a failure that stops the run."""
        for outcome, answer in self._here:
            outcome.take(answer)

    def scores(self) -> Scores:
        """All scores, as soon as those elsewhere have answered; `call` has been called by then.

        Raises RewardError for a failure that stops the run.
        """
        for outcome, answer in self._elsewhere:
            outcome.take(answer)
        outcomes = self.outcomes
        return Scores(
            names=tuple(one.reward.name for one in outcomes),
            weights=self.weights,
            scales=self.scales,
            values=torch.tensor(
                [one.values for one in outcomes], dtype=torch.float64
            ).T.contiguous(),
            failed=self._failed,
            seconds={one.reward.name: one.call.seconds for one in outcomes},
            extra={name: column for one in outcomes for name, column in one.call.extra.items()},
            metrics={name: value for one in outcomes for name, value in one.metrics.items()},
            undefined={one.reward.name: one.undefined for one in outcomes if one.undefined},
            failures={one.reward.name: one.reason for one in outcomes if one.reason},
            steps=self._steps(),
            judges_steps=frozenset(one.reward.name for one in outcomes if one.steps),
        )

    @property
    def _failed(self) -> torch.Tensor:
        return torch.stack([outcome.failed for outcome in self.outcomes]).any(dim=0)

    def _steps(self) -> torch.Tensor | None:
        """[B, T] float64: weighted step rewards summed where steps end, NaN where none does.

        A reward gives one for each decision, in order; where decisions are, the mask says.
        """
        factors = [w / scale for w, scale in zip(self.weights, self.scales, strict=True)]
        judging = [(o, f) for o, f in zip(self.outcomes, factors, strict=True) if o.steps]
        if not judging:
            return None
        mask = self.rollouts.mask.cpu()
        total = torch.full(mask.shape, math.nan, dtype=torch.float64)
        for outcome, factor in judging:
            for row, rewards in outcome.steps.items():
                places = mask[row].nonzero().flatten().tolist()
                for place, value in zip(places, rewards, strict=True):
                    if value is not None:
                        there = total[row, place].nan_to_num(0.0)
                        total[row, place] = there + factor * float(value)
        total[self._failed] = math.nan
        return total
