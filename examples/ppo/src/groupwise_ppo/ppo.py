"""PPO: a critic is the baseline of every decision.

When to use it: where one completion of a prompt is all that can be had, or where it matters which
decision of a completion was good. It costs a second model, which has to be learned first.
"""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from groupwise import LogProbs, Rollouts, advantages, objective
from groupwise.algorithm import Algorithm, Batch
from groupwise.algorithms.grpo import GRPO
from groupwise.rewards import Scores
from groupwise_ppo.estimates import at_the_end, gae, value_loss, whitened


class PPO(GRPO):
    """Proximal Policy Optimization, arXiv:1707.06347, for language models as in arXiv:2203.02155.

    GRPO's clipped objective with the advantages of `gae`, plus `value_weight` times `value_loss`.
    Rewards count at the last decision, those of steps where they end. What else GRPO has it has,
    too: the KL to a reference (`beta`) is in the loss, where InstructGPT has it in the reward.
    `gae_lambda` is 1, as in verl and OpenRLHF; in TRL it is 0.95, by which the reward of 90 tokens
    reaches the first of them by a hundredth, and else through values that must be learned first.
    """

    old = frozenset({"log_probs", "value"})
    sees = frozenset({"old_value"})

    class Config(GRPO.Config):
        normalize: objective.Normalize = Field("token", description="what losses are averaged over")
        scale: advantages.Scale = Field(
            "batch",
            description="what advantages are whitened over: mean 0 and std 1 over all decisions of "
            "the batch, or of each group; none leaves them",
        )
        epsilon: float = Field(1e-8, gt=0, description="added to the std")
        gamma: float = Field(1.0, gt=0, le=1, description="discount of a decision")
        gae_lambda: float = Field(
            1.0,
            ge=0,
            le=1,
            description="1 trusts the reward that came, 0 the value of the next state",
        )
        value_lambda: float | None = Field(
            None,
            ge=0,
            le=1,
            description="the same for what the critic learns (VC-PPO: 1); gae_lambda if unset",
        )
        value_clip: float | None = Field(
            0.2, gt=0, description="how far a value may move in a step; unset clips nothing"
        )
        value_weight: float = Field(0.1, gt=0, description="weight of the critic's loss")

    config: Config
    smallest_group = 1

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())
        self.needs = self.needs | {"value"}

    def targets(
        self, scores: Scores, rollouts: Rollouts, answers: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """`advantages`, `returns` (what values should have been) and `weights`, each [B, T].

        A rollout that no reward applies to weighs 0: it says nothing of the values, either.
        """
        config, values = self.config, answers["old_value"].double()
        mask = rollouts.mask & ~scores.total.isnan().unsqueeze(1)
        rewards = self.rewards(scores, rollouts)
        better = gae(rewards, values, mask, gamma=config.gamma, decay=config.gae_lambda)
        error = better
        if config.value_lambda is not None:
            error = gae(rewards, values, mask, gamma=config.gamma, decay=config.value_lambda)
        counted = mask & ~(rollouts.truncated.unsqueeze(1) & config.mask_truncated)
        # Of the whole update, whose rollouts without reward still count in the denominators.
        weights = objective.weights(
            rollouts.mask, normalize=config.normalize, length=self.length
        ).masked_fill(~counted, 0.0)
        return {
            "advantages": self.scaled(better, mask, rollouts.groups).float(),
            "returns": (values + error).masked_fill(~mask, 0.0).float(),
            "weights": weights,
        }

    def rewards(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B, T] float64: what each decision earned; variants override this."""
        rewards = at_the_end(scores.outcome.nan_to_num(), rollouts.mask)
        if scores.steps is not None:
            steps = scores.steps.nan_to_num()
            rewards[:, : steps.shape[1]] += steps
        return rewards

    def scaled(self, better: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
        """[B, T]: the advantages that GAE gives, as the loss takes them; variants override this."""
        return whitened(better, mask, groups, scale=self.config.scale, epsilon=self.config.epsilon)

    def dead(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B] bool: no rollout of the group has a reward; from any other the critic learns."""
        return advantages.groups_without(~scores.total.isnan(), rollouts.groups)

    def active(self, targets: Mapping[str, Tensor]) -> Tensor:
        """All with weight: the critic learns from an advantage of 0, too."""
        return Algorithm.active(self, targets)

    def loss(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: GRPO's, and the critic's beside it."""
        value = torch.where(batch["mask"], self.value_loss(current, batch) * batch["weights"], 0.0)
        return super().loss(current, batch) + self.config.value_weight * value

    def value_loss(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the critic's loss of each decision, unweighted."""
        clip = self.config.value_clip
        return value_loss(current.extra["value"], batch["old_value"], batch["returns"], clip=clip)

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """Beside GRPO's the mean value, and the squared error of the values."""
        value = current.extra["value"]
        error = (value - batch["returns"]).square()
        return {**super().measure(current, batch), "value": value, "value_error": error}
