"""VESPO: a soft weight by the likelihood of the whole completion.

When to use it: where rollouts are old, drawn by another engine or used for many updates, so that a
clip would cut much. W is the product of the ratios of all decisions, not their mean, so it leaves 1
soon where completions are long: phi then silences the whole completion. It assumes that most
completions are not that far away, and that log-probs are sums of decisions: for images, whose
log-probs are means over dimensions, W stays at 1 and phi does nothing; take another there.

Where implementations differ: W is the policy against whatever drew the completion, so importance
weights are inside it and multiply nothing else. TRL cuts or masks those first, each by itself; here
phi is all the bound there is. TRL bounds log W to [log 1e-8, 20], outside of which phi is 0.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.grpo import GRPO
from groupwise.algorithms.unclipped import Unclipped
from groupwise.rollouts import LogProbs


class VESPO(GRPO):
    """VESPO, arXiv:2602.10693: weigh a completion softly by how likely it has become as a whole.

        W = exp(sum of the completion's log-ratios to what drew it)
        loss = -stopgrad(W^k exp(lambda (1 - W))) A log_prob

    `phi` is that weight, 1 at W = 1.
    """

    couples_decisions = True

    class Config(Unclipped):
        k_positive: float = Field(2.0, ge=0, description="k where the advantage is not negative")
        lambda_positive: float = Field(
            3.0, gt=0, description="lambda where the advantage is not negative"
        )
        k_negative: float = Field(3.0, ge=0, description="k where the advantage is negative")
        lambda_negative: float = Field(
            2.0, gt=0, description="lambda where the advantage is negative"
        )
        normalize: objective.Normalize = "token"
        importance: Literal["sequence", "none"] = Field(
            "sequence",
            description="whether W is against what drew the completion, or what the policy said "
            "before the step's first update",
        )
        importance_mode: ClassVar[None] = None  # type: ignore[misc]
        importance_cap: ClassVar[None] = None  # type: ignore[misc]

    config: Config

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        assert current.log_probs is not None
        log_probs = current.log_probs.masked_fill(~batch["mask"], 0.0)
        phi = self._phi(current, batch)
        return -phi * objective.per_decision(batch["advantages"]) * log_probs

    def damping(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t]: the weight of the completion, at all of its decisions."""
        return {"phi": self._phi(current, batch)}

    def importance(self, batch: Batch) -> None:
        """None: W has it in itself."""

    def _phi(self, current: LogProbs, batch: Batch) -> Tensor:
        assert current.log_probs is not None
        drawn = "sampler_log_probs" if self.config.importance != "none" else "old_log_probs"
        log_weight = objective.token_log_ratio(
            current.log_probs, batch.get(drawn, batch["old_log_probs"]), batch["mask"]
        ).sum(dim=1, keepdim=True)
        config = self.config
        return objective.vespo_weights(
            log_weight.expand_as(current.log_probs),
            batch["advantages"],
            positive=(config.k_positive, config.lambda_positive),
            negative=(config.k_negative, config.lambda_negative),
        )
