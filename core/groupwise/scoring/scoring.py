"""Scoring: a batch of rollouts whose scoring has begun."""

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.outcome import Outcome, excerpt

Answer = Callable[[], Any]
"""Returns a reward's values: waits for them, or makes the call."""


class Scoring:
    """The calls of rewards on one batch: some already run elsewhere, some wait for this thread.

    rollouts: the whole batch, with its facts in CPU memory; rewards are called on those that did
    not fail, in their order. outcomes: one for each reward; weights, scales: as in `Scores`; here:
    those whose call is made in this thread, by `call`; elsewhere: those whose call already runs.
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
        self.rows: list[int] = (~rollouts.failed).nonzero().flatten().tolist()
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
        outcomes, reasons = self.outcomes, self._reasons()
        judged = torch.tensor([outcome.values for outcome in outcomes], dtype=torch.float64).T
        values = judged.new_full((len(self.rollouts), len(outcomes)), math.nan)
        values[torch.tensor(self.rows, dtype=torch.int64)] = judged
        failed = torch.tensor([reason is not None for reason in reasons], dtype=torch.bool)
        extra = {name: column for o in outcomes for name, column in o.call.extra.items()}
        return Scores(
            names=tuple(outcome.reward.name for outcome in outcomes),
            weights=self.weights,
            scales=self.scales,
            values=values,
            failed=failed,
            seconds={o.reward.name: o.call.seconds for o in outcomes},
            extra={name: self._spread(column) for name, column in extra.items()},
            metrics={name: value for o in outcomes for name, value in o.metrics.items()},
            failures=self._failures(),
            failure_counts=self._failure_counts(),
            reasons=reasons if any(reasons) else None,
            steps=self._steps(failed),
            judges_steps=frozenset(o.reward.name for o in outcomes if o.steps),
        )

    def _spread(self, column: Sequence[Any]) -> list[Any]:
        """A column of the judged rollouts as one of all, with None for those that failed."""
        spread: list[Any] = [None] * len(self.rollouts)
        for row, value in zip(self.rows, column, strict=True):
            spread[row] = value
        return spread

    def _reasons(self) -> list[str | None]:
        """Why each rollout failed: the sampler's reason, or that of the first reward."""
        reasons = list(self.rollouts.failures or [None] * len(self.rollouts))
        for outcome in reversed(self.outcomes):
            for row, reason in outcome.errors.items():
                reasons[self.rows[row]] = f"reward {outcome.reward.name!r} {reason}"
        return reasons

    def _failures(self) -> dict[str, str]:
        """By reward, its first failure and the prompt in one line."""
        described = {}
        for outcome in self.outcomes:
            for row, reason in islice(outcome.errors.items(), 1):
                why = f"reward {outcome.reward.name!r} {reason}".splitlines()[0]
                prompt = excerpt(self.rollouts.prompts[self.rows[row]].get("prompt"))
                described[outcome.reward.name] = f"{why}, at the prompt {prompt}"
        return described

    def _failure_counts(self) -> dict[str, int]:
        counts = {o.reward.name: len(o.errors) for o in self.outcomes}
        return {name: count for name, count in counts.items() if count}

    def _steps(self, failed: Tensor) -> Tensor | None:
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
            for number, rewards in outcome.steps.items():
                row = self.rows[number]
                places = mask[row].nonzero().flatten().tolist()
                for place, value in zip(places, rewards, strict=True):
                    if value is not None:
                        so_far = total[row, place].nan_to_num(0.0)
                        total[row, place] = so_far + factor * float(value)
        return total.masked_fill(failed.unsqueeze(1), math.nan)
