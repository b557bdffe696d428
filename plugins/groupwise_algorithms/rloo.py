"""RLOO: each completion is left out of its own baseline.

When to use it: small groups, of two to four, where including a completion's own reward in the mean
removes a good part of its advantage; the estimate of the policy gradient is unbiased. If all groups
have the same size G, it is Dr. GRPO times G / (G - 1), a factor that AdamW cancels.

Where implementations differ: the paper and TRL use one ratio for the whole completion (TRL clips
it) and the KL to the reference in the reward; here each decision has its own ratio and the KL is in
the loss, as in GRPO. In a step's first update, without a KL and with `length: 1`, the gradients are
the same. TRL also divides by the std of the batch's advantages.
"""

from torch import Tensor

from groupwise import advantages, objective
from groupwise.algorithms.parts import Clipped, GroupCentred, Usual
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


class RLOO(Usual, advantage=GroupCentred, surrogate=Clipped):
    """RLOO, arXiv:2402.14740: compare with the others of the group, for groups of 2 to 4.

    A = r - mean of the others of the group
    """

    class Config(Usual.Config, GroupCentred.Config, Clipped.Config):
        normalize: objective.Normalize = "constant"

    config: Config

    def relative(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        return leave_one_out(scores.outcome, rollouts.groups, least_std=self.config.least_std)


def leave_one_out(rewards: Tensor, groups: Tensor, *, least_std: float = 0.0) -> Tensor:
    """A = r - mean of the others in its group; RLOO, arXiv:2402.14740.

    rewards: [B], NaN for none; groups: [B]. Returns [B]: 0 for a rollout without a reward, alone in
    its group, or in a group whose std is below `least_std`.
    """
    centred = advantages.group_relative(rewards, groups, scale="none", least_std=least_std)
    # r - mean of the n - 1 others = n / (n - 1) x (r - mean of all n)
    n = advantages.group_sum((~rewards.isnan()).to(groups.dtype), groups)
    return centred * n / (n - 1).clamp(min=1)
