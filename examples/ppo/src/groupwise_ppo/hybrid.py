"""Hybrid GRPO: the group is the baseline of a prompt, a critic that of every decision.

When to use it: instead of PPO, where several completions per prompt are affordable. The group shows
how hard a prompt is, so the critic only has to learn how a partial completion compares with others.
"""

from pydantic import Field
from torch import Tensor

from groupwise import Rollouts, advantages
from groupwise.rewards import Scores
from groupwise_ppo.estimates import at_the_end
from groupwise_ppo.ppo import PPO


class HybridGRPO(PPO):
    """Hybrid Group Relative Policy Optimization, arXiv:2502.01652.

    In the paper A = mean of f(r) over the actions sampled in a state + V(s') - V(s). Taken
    literally, all completions of a prompt would have the same advantage. So each has its own f(r)
    here, GRPO's (r - mean of the group) / std, the loss averages over the group, and `gae`
    bootstraps between tokens.
    """

    class Config(PPO.Config):
        scale: advantages.Scale = Field(
            "group", description="the std that centred rewards are divided by: group, batch or none"
        )
        epsilon: float = Field(1e-4, gt=0, description="added to the std")
        gae_lambda: float = Field(
            0.95,
            ge=0,
            le=1,
            description="lambda of the advantages: 1 uses the rewards, 0 the next state's value",
        )
        value_lambda: float | None = Field(
            1.0, ge=0, le=1, description="lambda of the critic's targets; gae_lambda if unset"
        )

    smallest_group = 2

    def rewards(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B, T]: GRPO's advantage at the last decision; step rewards are part of the total."""
        relative = advantages.group_relative(
            scores.total, rollouts.groups, scale=self.config.scale, epsilon=self.config.epsilon
        )
        return at_the_end(relative, rollouts.mask)

    def scaled(self, better: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
        """Unchanged: the rewards are scaled already."""
        return better
