"""LEAD: short right answers, wrong ones penalised, hard prompts first.

When to use it: for mathematics and the like, where answers are right or wrong and grow longer than
they need to be. It assumes a reward that tells right from wrong, and groups large enough to hold
several right ones: length is measured against those. Where all completions are equally long, as
pictures are, the penalty and the weights by difficulty remain, and do the same.

Where implementations differ: a right answer is told by a reward of 1 (`right`) rather than by any
above 0, and the stds are the unbiased ones, as everywhere here. `penalty: 0` gives wrong answers
the 0 that they have without the paper's penalty. The weights' constants are the paper's; alpha is
that of the authors' code, which leaves lengths out where the three shortest completions of a group
have 4,000 tokens or fewer on average.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from groupwise import advantages
from groupwise.algorithms.grpo import GRPO
from groupwise.errors import UserError, did_you_mean
from groupwise.rollouts import Rollouts

if TYPE_CHECKING:
    from groupwise.rewards import Scores


class LEAD(GRPO):
    """GRPO-LEAD, arXiv:2504.09696: short right answers, wrong ones penalised, hard prompts first.

        r = exp(-alpha z) if right, else -penalty; z = (length - mean of right) / std of right
        A = (r - mean of the group) / (std of the group + epsilon), times w(share of right)
        w(p) = lowest + (highest - lowest) / (1 + exp(slope (p - middle))), for A < 0 of 1 - p

    The reward named `accuracy` is replaced so; others are added to it as they are.
    """

    class Config(GRPO.Config):
        accuracy: str | None = Field(
            None, description="the reward that tells right from wrong; the first if unset"
        )
        right: float = Field(1.0, description="an answer is right from this value of it on")
        alpha: float = Field(0.05, ge=0, description="how much length costs right answers")
        penalty: float = Field(1.0, ge=0, description="what wrong answers lose")
        lowest: float = Field(0.4, ge=0, description="weight of a right answer where all are right")
        highest: float = Field(1.5, ge=0, description="weight of a right answer where few are")
        middle: float = Field(0.75, description="share of right answers with the weight between")
        slope: float = Field(10.0, ge=0, description="how fast the weight falls there")

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())

    def relative(self, scores: "Scores", rollouts: Rollouts) -> Tensor:
        config, column = self.config, self._column(scores)
        accuracy = scores.values[:, column]
        right = (accuracy >= config.right).to(accuracy.dtype)
        right = right.masked_fill(accuracy.isnan() | scores.failed, torch.nan)
        values = scores.values.clone()
        values[:, column] = advantages.lead_rewards(
            right, rollouts.lengths, rollouts.groups, alpha=config.alpha, penalty=config.penalty
        )
        return advantages.by_difficulty(
            super().relative(replace(scores, values=values), rollouts),
            right,
            rollouts.groups,
            lowest=config.lowest,
            highest=config.highest,
            middle=config.middle,
            slope=config.slope,
        )

    def _column(self, scores: "Scores") -> int:
        """Which reward is the accuracy."""
        name = self.config.accuracy or scores.names[0]
        if name not in scores.names:
            raise UserError(
                f"algorithm.accuracy: {name!r} is none of the rewards "
                f"{', '.join(scores.names)}{did_you_mean(name, scores.names)}"
            )
        if name in scores.judges_steps:
            raise UserError(
                f"algorithm.accuracy: {name!r} judges steps; lead needs one that says of a whole "
                f"completion whether it is right"
            )
        return scores.names.index(name)
