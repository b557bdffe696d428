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
        return advantages.length_weighted(
            scores.outcome, rollouts.lengths, rollouts.groups, least_std=self.config.least_std
        )
