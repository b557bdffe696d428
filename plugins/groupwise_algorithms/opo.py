"""OPO: a baseline in which long completions count more.

When to use it: one update per step, and completions that differ much in length. The gradient of a
long completion is larger, so the baseline that leaves the least variance is not the mean reward but
nearer to the rewards of long completions. It assumes that the gradients of single decisions are
about equally large and unrelated. If all completions have the same length, as images have, it is
`dr_grpo`.

Where implementations differ: the authors make one update with the completions of a step, without a
KL and an entropy bonus, as the defaults do here; nothing prevents more updates, which GRPO's clip
then limits. Their code is verl's, which averages over decisions, as here.
"""

from torch import Tensor

from groupwise import advantages, objective
from groupwise.algorithms.parts import Clipped, GroupCentred, Usual
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


class OPO(Usual, advantage=GroupCentred, surrogate=Clipped):
    """OPO, arXiv:2505.23585: the baseline of least variance if lengths differ, for one update.

    A = r - sum of T r / sum of T, over the group, T the length of a completion
    """

    class Config(Usual.Config, GroupCentred.Config, Clipped.Config):
        normalize: objective.Normalize = "token"

    config: Config

    def relative(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        return length_weighted(
            scores.outcome, rollouts.lengths, rollouts.groups, least_std=self.config.least_std
        )


def length_weighted(
    rewards: Tensor, lengths: Tensor, groups: Tensor, *, least_std: float = 0.0
) -> Tensor:
    """A = r - sum(L r) / sum(L) over its group, L the lengths; OPO, arXiv:2505.23585.

    rewards: [B], NaN for none; lengths: [B], in decisions; groups: [B]. Returns [B]: 0 for a
    rollout without a reward, or in a group whose std is below `least_std`.
    """
    centred = advantages.group_relative(rewards, groups, scale="none", least_std=least_std)
    lengths = lengths.to(rewards.dtype).masked_fill(rewards.isnan(), 0.0)
    total = advantages.group_sum(lengths, groups).clamp(min=1)
    relative = centred - advantages.group_sum(lengths * centred, groups) / total
    return relative.masked_fill(rewards.isnan(), 0.0)
