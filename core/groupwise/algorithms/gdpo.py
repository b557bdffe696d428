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

    def relative(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B]: the advantages of whole completions."""
        config = self.config
        return advantages.normalise_then_sum(
            scores.outcomes / scores.values.new_tensor(scores.scales),
            rollouts.groups,
            weights=scores.outcomes.new_tensor(scores.weights),
            scale=config.scale,
            epsilon=config.epsilon,
            least_std=config.least_std,
        )
