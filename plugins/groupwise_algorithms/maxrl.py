"""MaxRL: the likelihood of right answers, in place of their share.

When to use it: answers are right or wrong, and many prompts are hard. GRPO weights a prompt with a
share p of right answers by about 1 / sqrt(p (1 - p)), Dr. GRPO by 1, MaxRL by 1 / p: what is rarely
right teaches most, and what is nearly always right hardly anything. Large groups make more of it:
with groups of G the expected gradient is that of log p, expanded in powers of 1 - p up to order
G - 1. Rewards must not be negative; for rewards that are not 0 or 1 it only means that prompts of
low reward count more.

Where implementations differ: the baseline is the mean of the group in the authors' code and here;
the paper's estimate without a baseline has order G. A group without a right answer teaches nothing.
"""

import torch
from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithms.parts import Clipped, GroupCentred, Usual
from groupwise.kit.errors import UserError
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


class MaxRL(Usual, advantage=GroupCentred, surrogate=Clipped):
    """MaxRL, arXiv:2602.02710: maximise the log of the share of right answers, for hard prompts.

    A = (r - mean of the group) / (mean of the group + epsilon)
    """

    class Config(Usual.Config):
        normalize: objective.Normalize = "token"
        epsilon: float = Field(1e-6, gt=0, description="added to the mean")

    config: Config

    def relative(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        rewards, centred = scores.outcome.nan_to_num(), super().relative(scores, rollouts)
        if bool((rewards < 0).any()):
            raise UserError(
                f"algorithm maxrl divides by a group's mean reward, so the sum of a completion's "
                f"rewards must be at least 0, found {float(rewards.min()):g}; leave out penalties, "
                f"or take another algorithm"
            )
        # Where it is 0, so are the advantages: groups of equal rewards, completions without one.
        mean = rewards - centred
        return torch.where(centred != 0, centred / (mean + self.config.epsilon), 0.0)
