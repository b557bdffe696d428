"""REINFORCE++ with a baseline: the group's mean, the batch's std.

When to use it: in place of GRPO, if groups are small or their std is often tiny. GRPO then blows up
differences that mean little; a std of the whole batch does not. It assumes rewards on one scale.

Where implementations differ: ms-swift and RLinf subtract the KL from the reward; slime and we have
it in the loss (k2 by default, whose gradient is that of the KL). `scale: batch` of TRL and of our
GRPO is another thing: it divides by the std of the rewards themselves, which includes differences
between prompts, over completions, not decisions. Because the mean is over decisions, it is not 0 if
long completions do better or worse. All implementations subtract it, so a group of equal rewards
gets minus this mean as its advantage, divided by the std.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithms.parts import Clipped, GroupCentred, Usual
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise_algorithms.reinforce_pp import judged, whitened


class ReinforcePPBaseline(Usual, advantage=GroupCentred, surrogate=Clipped):
    """REINFORCE++ with a baseline, arXiv:2501.03262: group mean, std of the batch; small groups.

    a = r - mean of the group
    A = (a - mean of the batch) / (std of the batch + epsilon)
    loss = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
    """

    class Config(Usual.Config):
        kl: objective.Estimator | Literal["exact"] = "k2"
        normalize: objective.Normalize = "token"
        epsilon: float = Field(1e-8, gt=0, description="added to the std")

    config: Config

    def estimate(self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor]) -> Tensor:
        centred = objective.per_decision(super().estimate(scores, rollouts, inputs))
        mask = judged(scores, rollouts.mask)
        return whitened(centred.expand(mask.shape), mask, epsilon=self.config.epsilon)
