"""An algorithm: REINFORCE with a leave-one-out baseline."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from groupwise import Algorithm, LogProbs, Rollouts, advantages, objective
from groupwise.rewards import Scores


class Reinforce(Algorithm):
    """A = r - mean of the group's other r, loss = -A log pi(rollout); arXiv:2402.14740.

    Without ratio and clip, so it needs one update per rollout.
    """

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def targets(
        self, scores: Scores, rollouts: Rollouts, answers: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        centred = advantages.group_relative(scores.total, rollouts.groups, scale="none")
        # r - mean of the other n - 1 = n / (n - 1) * (r - mean of all n that have a reward).
        same = rollouts.groups.unsqueeze(0) == rollouts.groups.unsqueeze(1)
        n = (same & ~scores.total.isnan()).sum(dim=1)
        return {
            "advantages": (centred * n / (n - 1).clamp(min=1)).float(),
            # 1 / B for every decision: a rollout's log-prob is the sum over its decisions.
            "weights": objective.weights(rollouts.mask, normalize="constant", length=1),
        }

    def loss(self, current: LogProbs, batch: Mapping[str, Tensor]) -> Tensor:
        assert current.log_probs is not None
        # log pi - log pi_old has the gradient of log pi, and is 0 at padding.
        log_pi = objective.token_log_ratio(current.log_probs, batch["old_log_probs"], batch["mask"])
        return -objective.per_decision(batch["advantages"]) * log_pi * batch["weights"]

    def measure(
        self,
        current: LogProbs,
        batch: Mapping[str, Tensor],
    ) -> Mapping[str, Tensor]:
        return {} if current.entropy is None else {"trained_entropy": current.entropy}
