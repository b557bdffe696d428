"""GDPO: each reward is normalised in its group before they are summed.

When to use it: for several rewards of different size or spread. Summed first, as in GRPO, the one
that varies most decides the advantages and the others drown; and rewards that differ may have equal
sums. Here a weight says how much a reward counts, whatever its unit. It assumes that every
difference is worth learning: one of a thousandth in a group counts as much as one of a whole point.

Implementations differ. A reward that does not apply is left out of its group's mean and std here
and in TRL (`multi_objective_aggregation="normalize_then_sum"`), and a 0 among the others in the
authors' code. The last std is over the completions of an update here, over those of a step in TRL,
and over their tokens in the authors' code for verl.
"""

from typing import TYPE_CHECKING

from pydantic import Field
from torch import Tensor

from groupwise import advantages
from groupwise.algorithms.grpo import GRPO
from groupwise.rollouts import Rollouts

if TYPE_CHECKING:
    from groupwise.rewards import Scores


class GDPO(GRPO):
    """GDPO, arXiv:2601.05242: normalise each reward by itself, and then sum.

        S = sum of w_k (r_k - mean of the group) / (std of the group + epsilon)
        A = S / (std of the batch + epsilon)

    Step rewards are summed by their weights first and normalised as GRPO does: the paper has none.
    """

    class Config(GRPO.Config):
        scale: advantages.Scale = Field(
            "group", description="what std each reward is divided by before they are summed"
        )

    def relative(self, scores: "Scores", rollouts: Rollouts) -> Tensor:
        """[B]: the advantages of whole completions."""
        config = self.config
        return advantages.normalise_then_sum(
            scores.outcomes / scores.units,
            rollouts.groups,
            weights=scores.outcomes.new_tensor(scores.weights),
            scale=config.scale,
            epsilon=config.epsilon,
        )
