"""GDPO: each reward is normalised in its group before the rewards are summed.

When to use it: several rewards of different size or spread. In GRPO, which sums first, the reward
that varies most decides the advantages and hides the others; and different rewards may have equal
sums. Here the weight of a reward says how much it counts, whatever its unit. It assumes that every
difference matters: in a group, one of 0.001 counts as much as one of 1.

Where implementations differ: a reward that does not apply is left out of its group's mean and std
here and in TRL (`multi_objective_aggregation="normalize_then_sum"`), and counts as 0 in the
authors' code. The last std is over the completions of an update here, of a step in TRL, and over
their tokens in the authors' code for verl.
"""

import torch
from pydantic import Field
from torch import Tensor

from groupwise import advantages
from groupwise.algorithms.grpo import GRPO
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


class GDPO(GRPO):
    """GDPO, arXiv:2601.05242: for several rewards; normalise each by itself, then sum.

        S = sum of w_k (r_k - mean of the group) / (std of the group + epsilon)
        A = S / (std of the batch + epsilon)

    Step rewards, which the paper does not have, are summed by weight first and then normalised, as
    in GRPO.
    """

    class Config(GRPO.Config):
        scale: advantages.Scale = Field(
            "group", description="the std that each reward is divided by before the sum"
        )
        least_std: float = Field(
            0.0,
            ge=0,
            description="a reward with a smaller std in a group teaches nothing there; it is in "
            "that reward's units, and the same for all rewards",
        )

    ranks_by_total = False

    def relative(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B]: the advantages of whole completions."""
        config = self.config
        return normalise_then_sum(
            scores.outcomes / scores.values.new_tensor(scores.scales),
            rollouts.groups,
            weights=scores.outcomes.new_tensor(scores.weights),
            scale=config.scale,
            epsilon=config.epsilon,
            least_std=config.least_std,
        )


def normalise_then_sum(
    rewards: Tensor,
    groups: Tensor,
    *,
    weights: Tensor,
    scale: advantages.Scale = "group",
    epsilon: float = 1e-4,
    least_std: float = 0.0,
) -> Tensor:
    """A = S / (std of S over the batch + epsilon), S = sum_k w_k A_k; GDPO, arXiv:2601.05242.

    rewards: [B, K] float, NaN where a reward does not apply: its A_k is 0 there. Rollouts to which
        none applies are left out of the std.
    weights: [K] float. A_k is `group_relative` of reward k alone, with the same `scale` and
        `least_std`, a std of each reward before its weight.
    The paper also subtracts the mean of S over the batch. It is 0 here, since each A_k sums to 0 in
    each group.
    Returns [B], in the rewards' dtype.
    """
    relative = torch.zeros_like(rewards)
    for k, column in enumerate(rewards.unbind(dim=1)):
        relative[:, k] = advantages.group_relative(
            column, groups, scale=scale, epsilon=epsilon, least_std=least_std
        )
    summed = relative @ weights.to(rewards.dtype)
    scored = summed[~rewards.isnan().all(dim=1)]
    std = scored.std() if len(scored) > 1 else summed.new_zeros(())
    return summed / (std + epsilon)
