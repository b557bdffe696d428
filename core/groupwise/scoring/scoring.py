"""Scoring: a batch of rollouts whose scoring has begun."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.outcome import Outcome

Answer = Callable[[], Any]
"""Returns a reward's values: waits for them, or makes the call."""


class Scoring:
    """The calls of rewards on one batch: some already run elsewhere, some wait for this thread.

    rollouts: the batch, with its facts in CPU memory; outcomes: one for each reward; weights,
    scales: as in `Scores`; here: those whose call is made in this thread, by `call`; elsewhere:
    those whose call already runs.
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
        """Make the calls of this thread, once. Raises RewardError for a failure that stops the run.

        The facts' tensors on the device are then freed.
        """
        calls, self._here = self._here, ()
        for outcome, answer in calls:
            outcome.take(answer)

    def scores(self) -> Scores:
        """All scores; waits for the calls elsewhere. To be called after `call`.

        Raises RewardError for a failure that stops the run.
        """
        for outcome, answer in self._elsewhere:
            outcome.take(answer)
        outcomes = self.outcomes
        return Scores(
            names=tuple(outcome.reward.name for outcome in outcomes),
            weights=self.weights,
            scales=self.scales,
            values=torch.tensor(
                [outcome.values for outcome in outcomes], dtype=torch.float64
            ).T.contiguous(),
            failed=self._failed,
            seconds={o.reward.name: o.call.seconds for o in outcomes},
            extra={name: column for o in outcomes for name, column in o.call.extra.items()},
            metrics={name: value for o in outcomes for name, value in o.metrics.items()},
            undefined={o.reward.name: o.undefined for o in outcomes if o.undefined},
            failures={o.reward.name: o.reason for o in outcomes if o.reason},
            steps=self._steps(),
            judges_steps=frozenset(o.reward.name for o in outcomes if o.steps),
        )

    @property
    def _failed(self) -> torch.Tensor:
        return torch.stack([outcome.failed for outcome in self.outcomes]).any(dim=0)

    def _steps(self) -> torch.Tensor | None:
        """[B, T] float64: sum_k w_k r_k of step rewards where steps end, NaN elsewhere.

        A reward returns one entry per decision, in order; the mask has their positions.
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
                        so_far = total[row, place].nan_to_num(0.0)
                        total[row, place] = so_far + factor * float(value)
        total[self._failed] = math.nan
        return total
