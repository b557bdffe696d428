"""VESPO: a smooth weight by the likelihood ratio of the whole completion.

When to use it: rollouts that are old, drawn by another engine or used for many updates, so that a
hard clip would remove many gradients. W is the product of all decisions' ratios, not their mean, so
for long completions it is soon far from 1, and phi then removes the whole completion. It assumes
that most completions are not that far away. Do not use it for images: their log-probs are means
over dimensions, so W stays near 1 and phi has no effect.

Where implementations differ: W compares the policy with whatever drew the completion, so it already
contains the importance weight, and no other one is applied. TRL first truncates or masks the
importance weight of each decision; here phi is the only bound. TRL clamps log W to [log 1e-8, 20],
outside of which phi is about 0.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts import AgainstSampler, GroupRelative
from groupwise.rollouts import LogProbs


class VESPO(AgainstSampler, advantage=GroupRelative):
    """VESPO, arXiv:2602.10693: weight whole completions by their ratio, for old rollouts.

        W = exp(sum of the completion's log-ratios, policy to sampler)
        loss = -stopgrad(W^k exp(lambda (1 - W))) A log_prob

    The metric `phi` is W^k exp(lambda (1 - W)), 1 at W = 1.
    """

    couples_decisions = True

    class Config(AgainstSampler.Config, GroupRelative.Config):
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
            description="W compares the policy with what drew the completion (sequence), or with "
            "itself before the step's first update (none)",
        )

    config: Config

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        assert current.log_probs is not None
        log_probs = current.log_probs.masked_fill(~batch["mask"], 0.0)
        phi = self._phi(current, batch)
        return -phi * objective.per_decision(batch["advantages"]) * log_probs

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t]: the weight of the completion, at all of its decisions."""
        return {"phi": self._phi(current, batch)}

    def _phi(self, current: LogProbs, batch: Batch) -> Tensor:
        assert current.log_probs is not None
        log_weight = objective.token_log_ratio(
            current.log_probs, self.drawn_log_probs(batch), batch["mask"]
        ).sum(dim=1, keepdim=True)
        config = self.config
        return vespo_weights(
            log_weight.expand_as(current.log_probs),
            batch["advantages"],
            positive=(config.k_positive, config.lambda_positive),
            negative=(config.k_negative, config.lambda_negative),
        )


def vespo_weights(
    log_weight: Tensor,
    advantages: Tensor,
    *,
    positive: tuple[float, float],
    negative: tuple[float, float],
) -> Tensor:
    """phi(W) = W^k exp(lambda (1 - W)), without gradient; VESPO, arXiv:2602.10693.

    log_weight: [B, T], the log of a rollout's W = policy / sampler (a product over its decisions),
        repeated at each of them.
    positive, negative: (k, lambda) where A >= 0, and where A < 0.
    phi(1) = 1; phi falls smoothly to 0 on both sides, as W^k for small and exponentially for large
    W.
    """
    is_positive = (objective.per_decision(advantages) >= 0).unsqueeze(-1)
    # Tensors, since torch.where of floats would give float32.
    if_positive, otherwise = log_weight.new_tensor(positive), log_weight.new_tensor(negative)
    k, decay = torch.where(is_positive, if_positive, otherwise).unbind(-1)
    log_weight = log_weight.detach()
    # In logs, since W^k overflows for W at which phi itself is about 0.
    return (k * log_weight + decay * (1 - log_weight.exp())).exp()
