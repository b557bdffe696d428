"""LEAD: reward short right answers, penalise wrong ones, weight hard prompts higher.

When to use it: for mathematics and the like, where answers are right or wrong and get longer than
necessary. It assumes a reward that tells right from wrong, and groups large enough to contain
several right answers, since length is measured against those. Where all completions have the same
length, as images have, the penalty and the weights by difficulty still work.

Where implementations differ: an answer is right here if its reward is at least `threshold`, by
default that of the run's accuracy, in the authors' code if it is above 0; stds are unbiased, as
everywhere here. `penalty: 0` gives wrong answers a reward of 0, without the paper's penalty. The
constants of the weights are the paper's; alpha is that of the authors' code, which ignores lengths
if the three shortest completions of a group have at most 4,000 tokens on average.
"""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from groupwise import advantages
from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError, did_you_mean
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


class LEAD(GRPO):
    """GRPO-LEAD, arXiv:2504.09696: rewards brevity if right, penalises wrong, favours hard prompts.

        r = exp(-alpha z) if right, else -penalty; z = (length - mean of right) / std of right
        A = (r - mean of the group) / (std of the group + epsilon), times w(share of right)
        w(p) = lowest + (highest - lowest) / (1 + exp(slope (p - middle))), for A < 0 of 1 - p

    Only the reward named by `accuracy` is replaced by r; other rewards are added unchanged.
    """

    class Config(GRPO.Config):
        accuracy: str | None = Field(
            None, description="the reward that tells right from wrong; unset, that of the accuracy"
        )
        threshold: float | None = Field(
            None,
            description="an answer is right if that reward is at least this; unset, "
            "evaluation.threshold for the run's accuracy, else 1",
        )
        alpha: float = Field(0.05, ge=0, description="cost of length in right answers")
        penalty: float = Field(1.0, ge=0, description="a wrong answer's reward is minus this")
        lowest: float = Field(
            0.4, ge=0, description="weight of a right answer if the whole group is right"
        )
        highest: float = Field(
            1.5, ge=0, description="weight of a right answer if few of the group are right"
        )
        middle: float = Field(
            0.75, description="share of right answers at which the weight is halfway between"
        )
        slope: float = Field(10.0, ge=0, description="how steeply the weight falls there")

    config: Config
    judging: str | None = None
    """The reward that is the run's accuracy."""
    threshold = 1.0
    """The least value of it for a right answer."""

    def take_accuracy(self, name: str | None, threshold: float) -> None:
        self.judging, self.threshold = name, threshold

    def relative(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        config, name = self.config, self._accuracy(scores)
        threshold = config.threshold
        if threshold is None:
            threshold = self.threshold if name == self.judging else 1.0
        right = scores.at_least(name, threshold)
        values = scores.values.clone()
        values[:, scores.names.index(name)] = lead_rewards(
            right, rollouts.lengths, rollouts.groups, alpha=config.alpha, penalty=config.penalty
        )
        return by_difficulty(
            super().relative(replace(scores, values=values), rollouts),
            right,
            rollouts.groups,
            lowest=config.lowest,
            highest=config.highest,
            middle=config.middle,
            slope=config.slope,
        )

    def _accuracy(self, scores: Scores) -> str:
        """The name of the reward that is the accuracy."""
        sole = scores.names[0] if len(scores.names) == 1 else None
        name = self.config.accuracy or self.judging or sole
        if name is None:
            raise UserError(
                f"algorithm.accuracy: no reward says that it tells right from wrong; set it to one "
                f"of {', '.join(scores.names)}"
            )
        if name not in scores.names:
            raise UserError(
                f"algorithm.accuracy: expected one of the rewards {', '.join(scores.names)}, "
                f"received {name!r}{did_you_mean(name, scores.names)}"
            )
        if name in scores.judges_steps:
            raise UserError(
                f"algorithm.accuracy: {name!r} judges steps; lead needs a reward that judges whole "
                f"completions"
            )
        return name


def lead_rewards(
    right: Tensor, lengths: Tensor, groups: Tensor, *, alpha: float, penalty: float
) -> Tensor:
    """exp(-alpha z) for right answers, -penalty for wrong ones; GRPO-LEAD, arXiv:2504.09696.

    z = (length - mean) / std, with mean and std over the right answers of the group.
    right: [B] float, 1 or 0, NaN if not judged; lengths: [B], in decisions; groups: [B].
    Returns [B], NaN where `right` is NaN.
    """
    length = lengths.to(right.dtype).masked_fill(right != 1, torch.nan)
    z = advantages.group_relative(length, groups, epsilon=1e-8)
    rewards = torch.where(right == 1, (-alpha * z).exp(), -penalty)
    return rewards.masked_fill(right.isnan(), torch.nan)


def by_difficulty(
    relative: Tensor,
    right: Tensor,
    groups: Tensor,
    *,
    lowest: float,
    highest: float,
    middle: float,
    slope: float,
) -> Tensor:
    """A w(rho) where A > 0, else A w(1 - rho), rho the group's share of right answers; GRPO-LEAD.

    w(rho) = lowest + (highest - lowest) / (1 + exp(slope (rho - middle))): of a hard prompt right
    answers count more, of an easy prompt wrong ones.
    relative: [B], A; right: [B] float, 1 or 0, NaN if not judged; groups: [B].
    """
    share = advantages.group_mean(right, groups)
    share = torch.where(relative > 0, share, 1 - share)
    return relative * (lowest + (highest - lowest) * torch.sigmoid(-slope * (share - middle)))
