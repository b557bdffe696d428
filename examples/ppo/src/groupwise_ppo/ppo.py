"""PPO: a critic is the baseline of every decision.

When to use it: where only one completion per prompt is affordable, or where it matters which
decision of a completion was good. It costs a second model, which has to be trained first.
"""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from groupwise import LogProbs, Rollouts, advantages, objective
from groupwise.algorithm import Algorithm, Batch
from groupwise.algorithms.parts import Advantages, Clipped, Options, Usual
from groupwise.rewards import Scores
from groupwise_ppo.estimates import at_the_end, gae, value_loss, whitened


class PPO(Clipped, Advantages, Usual):
    """Proximal Policy Optimization, arXiv:1707.06347, for language models as in arXiv:2203.02155.

    loss = GRPO's clipped objective with the advantages of `gae` + value_weight * `value_loss`.
    Rewards are at the last decision, step rewards where their steps end. GRPO's options apply,
    except those that compare groups: the KL to a reference (`beta`) is in the loss, while
    InstructGPT has it in the reward.
    `gae_lambda` is 1, as in verl and OpenRLHF. In TRL it is 0.95; over 90 tokens the reward then
    reaches the first token with a factor of 0.01, and otherwise only through trained values.
    """

    old = frozenset({"log_probs", "value"})
    target_inputs = frozenset({"old_value"})

    class Config(Usual.Config, Advantages.Config, Clipped.Config):
        normalize: objective.Normalize = Field("token", description="how losses are averaged")
        scale: advantages.Scale = Field(
            "batch",
            description="whitening of advantages: mean 0 and std 1 over all decisions of the "
            "batch, or of each group, or none",
        )
        epsilon: float = Field(1e-8, gt=0, description="added to the std")
        gamma: float = Field(1.0, gt=0, le=1, description="discount per decision")
        gae_lambda: float = Field(
            1.0,
            ge=0,
            le=1,
            description="lambda of the advantages: 1 uses the rewards, 0 the next state's value",
        )
        value_lambda: float | None = Field(
            None,
            ge=0,
            le=1,
            description="lambda of the critic's targets (VC-PPO: 1); gae_lambda if unset",
        )
        value_clip: float | None = Field(
            0.2, gt=0, description="clip range of values around those before the step; null is off"
        )
        value_weight: float = Field(0.1, gt=0, description="weight of the critic's loss")

    config: Config
    smallest_group = 1

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.needs = self.needs | {"value"}

    def targets(
        self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """`advantages`, `returns` (the critic's targets) and `weights`, each [B, T].

        A rollout without a reward has weight 0, for the critic, too.
        """
        config, mask = self.config, _rewarded(scores, rollouts)
        decay = config.gae_lambda if config.value_lambda is None else config.value_lambda
        error = self._gae(scores, rollouts, inputs, decay)
        counted = mask & ~(rollouts.truncated.unsqueeze(1) & config.mask_truncated)
        # Rollouts without a reward still count in the denominators.
        weights = objective.weights(
            rollouts.mask, normalize=config.normalize, length=self.length
        ).masked_fill(~counted, 0.0)
        return {
            "advantages": self.advantages(scores, rollouts, inputs).float(),
            "returns": (inputs["old_value"].double() + error).masked_fill(~mask, 0.0).float(),
            "weights": weights,
        }

    def estimate(self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor]) -> Tensor:
        """[B, T]: the scaled advantages of GAE."""
        better = self._gae(scores, rollouts, inputs, self.config.gae_lambda)
        return self.scaled(better, _rewarded(scores, rollouts), rollouts.groups)

    def _gae(
        self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor], decay: float
    ) -> Tensor:
        return gae(
            self.rewards(scores, rollouts),
            inputs["old_value"].double(),
            _rewarded(scores, rollouts),
            gamma=self.config.gamma,
            decay=decay,
        )

    def rewards(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B, T] float64: the reward of each decision; variants override this."""
        rewards = at_the_end(scores.outcome.nan_to_num(), rollouts.mask)
        if scores.steps is not None:
            steps = scores.steps.nan_to_num()
            rewards[:, : steps.shape[1]] += steps
        return rewards

    def scaled(self, better: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
        """[B, T]: the advantages of the loss, from those of GAE; variants override this."""
        return whitened(better, mask, groups, scale=self.config.scale, epsilon=self.config.epsilon)

    def no_signal(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B] bool: groups in which no rollout has a reward; the critic learns from all others."""
        return advantages.groups_without(~scores.total.isnan(), rollouts.groups)

    def active(self, targets: Mapping[str, Tensor]) -> Tensor:
        """All rollouts with weight: the critic also learns where the advantage is 0."""
        return Algorithm.active(self, targets)

    def loss(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: GRPO's loss plus the critic's."""
        value = torch.where(batch["mask"], self.value_loss(current, batch) * batch["weights"], 0.0)
        return super().loss(current, batch) + self.config.value_weight * value

    def value_loss(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the critic's loss of each decision, unweighted."""
        clip = self.config.value_clip
        return value_loss(current.extra["value"], batch["old_value"], batch["returns"], clip=clip)

    def measure(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """GRPO's metrics, the mean value, and the values' squared error."""
        value = current.extra["value"]
        error = (value - batch["returns"]).square()
        return {**super().measure(current, batch), "value": value, "value_error": error}


def _rewarded(scores: Scores, rollouts: Rollouts) -> Tensor:
    """[B, T] bool: the decisions of rollouts that have a reward."""
    return rollouts.mask & ~scores.total.isnan().unsqueeze(1)
