"""Scoring: a batch of rollouts whose scoring has begun."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.reward_result import RewardResult, excerpt


class Scoring:
    """The calls of rewards on one batch: some already run elsewhere, some wait for this thread.

    rollouts: the whole batch, with its facts in CPU memory; rewards are called on those that did
    not fail and are of their sources, in their order. results: one for each reward; weights,
    scales: as in `Scores`.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        results: Sequence[RewardResult],
        *,
        weights: tuple[float, ...],
        scales: tuple[float, ...],
    ) -> None:
        self.rollouts, self.results = rollouts, results
        self.weights, self.scales = weights, scales

    def call(self) -> None:
        """Make the calls of this thread, once. Raises RewardError for a failure that stops the run.

        The facts' tensors on the device are then freed.
        """
        for result in self.results:
            if result.is_here:
                result.take()

    def scores(self) -> Scores:
        """All scores; makes the calls of this thread that are left, and waits for those elsewhere.

        Raises RewardError for a failure that stops the run.
        """
        self.call()
        for result in self.results:
            result.take()
        results, reasons = self.results, self._reasons()
        values = torch.full((len(self.rollouts), len(results)), math.nan, dtype=torch.float64)
        for number, result in enumerate(results):
            rows = torch.tensor(result.rows, dtype=torch.int64)
            values[rows, number] = torch.tensor(result.values, dtype=torch.float64)
        failed = torch.tensor([reason is not None for reason in reasons], dtype=torch.bool)
        return Scores(
            names=tuple(result.reward.name for result in results),
            weights=self.weights,
            scales=self.scales,
            values=values,
            failed=failed,
            seconds={o.reward.name: o.call.seconds for o in results},
            extra={name: self._spread(o, x) for o in results for name, x in o.call.extra.items()},
            metrics={name: value for o in results for name, value in o.metrics.items()},
            failures={o.reward.name: self._first_failure(o) for o in results if o.errors},
            failure_counts={o.reward.name: len(o.errors) for o in results if o.errors},
            reasons=reasons if any(reasons) else None,
            steps=self._steps(failed),
            judges_steps=frozenset(o.reward.name for o in results if o.steps),
        )

    def _spread(self, result: RewardResult, column: Sequence[Any]) -> list[Any]:
        """A column of the rollouts that a reward judged as one of all, with None for others."""
        spread: list[Any] = [None] * len(self.rollouts)
        for row, value in zip(result.rows, column, strict=True):
            spread[row] = value
        return spread

    def _reasons(self) -> list[str | None]:
        """Why each rollout failed: the sampler's reason, or that of the first reward."""
        reasons = list(self.rollouts.failures or [None] * len(self.rollouts))
        for result in reversed(self.results):
            for row, reason in result.errors.items():
                reasons[result.rows[row]] = f"reward {result.reward.name!r} {reason}"
        return reasons

    def _first_failure(self, result: RewardResult) -> str:
        """A reward's first failure and its prompt in one line."""
        row, reason = next(iter(result.errors.items()))
        why = f"reward {result.reward.name!r} {reason}".splitlines()[0]
        return f"{why}, at the prompt {excerpt(result.rollouts.prompts[row].get('prompt'))}"

    def _steps(self, failed: Tensor) -> Tensor | None:
        """[B, T] float64: sum_k w_k r_k of step rewards where steps end, NaN elsewhere.

        A reward returns one entry per decision, in order; the mask has their positions.
        """
        if not any(result.steps for result in self.results):
            return None
        mask = self.rollouts.mask.cpu()
        total = torch.full(mask.shape, math.nan, dtype=torch.float64)
        for result, w, scale in zip(self.results, self.weights, self.scales, strict=True):
            for number, rewards in result.steps.items():
                row = result.rows[number]
                for place, value in zip(mask[row].nonzero().flatten(), rewards, strict=True):
                    if value is not None:
                        so_far = total[row, place].nan_to_num(0.0)
                        total[row, place] = so_far + w / scale * float(value)
        return total.masked_fill(failed.unsqueeze(1), math.nan)
