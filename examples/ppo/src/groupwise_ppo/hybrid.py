"""Hybrid GRPO: the group is the baseline of a prompt, a critic that of every decision after it.

When to use it: as PPO, where groups can be had. The critic need not learn how hard a prompt is, as
the group says that; it learns how a beginning compares with the group's other completions.
"""

from pydantic import Field
from torch import Tensor

from groupwise import Rollouts, advantages
from groupwise.rewards import Scores
from groupwise_ppo.estimates import at_the_end
from groupwise_ppo.ppo import PPO


class HybridGRPO(PPO):
    """Hybrid Group Relative Policy Optimization, arXiv:2502.01652.

    There an advantage is the mean of f(reward) over the actions sampled in a state, plus the next
    state's value, less the state's own. Taken by the letter, all completions of a prompt would have
    one advantage, and none would be preferred. So each has its own f(reward), GRPO's (reward - mean
    of the group) / std, the mean over the group is the loss's, and `gae` bootstraps between tokens.
    """

    class Config(PPO.Config):
        scale: advantages.Scale = Field(
            "group", description="what std rewards less their group's mean are divided by"
        )
        epsilon: float = Field(1e-4, gt=0, description="added to the std")
        gae_lambda: float = Field(
            0.95,
            ge=0,
            le=1,
            description="1 trusts the reward that came, 0 the value of the next state",
        )
        value_lambda: float | None = Field(
            1.0, ge=0, le=1, description="the same for what the critic learns; gae_lambda if unset"
        )

    smallest_group = 2

    def rewards(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B, T]: GRPO's advantage at the last decision; the reward of steps counts by its sum."""
        relative = advantages.group_relative(
            scores.total, rollouts.groups, scale=self.config.scale, epsilon=self.config.epsilon
        )
        return at_the_end(relative, rollouts.mask)

    def scaled(self, better: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
        """As they are: the rewards were scaled."""
        return better
