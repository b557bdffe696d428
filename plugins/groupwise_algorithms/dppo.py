"""DPPO: a trust region for probabilities, in place of a clip range for ratios.

When to use it: several updates per step, or rollouts of older weights or of an engine, with a large
vocabulary. A ratio says little about how far the policy has moved: a token that goes from 0.001 to
0.002 leaves GRPO's clip range though hardly anything has changed, and one that goes from 0.99 to
0.8 stays within it. Here a decision loses its gradient once its probability has moved too far and
the gradient would move it further. With one update per step every ratio is 1, and it is GRPO
averaged over decisions. Do not use it for images: their log-probs are densities, not probabilities.

Where implementations differ: the probability is compared with that of whatever drew the decision,
as in the paper, so the ratio already contains the importance weight, and no other one is applied.
The limits are those of the authors' runs; verl's default of 0.2 is its clip range for all losses.
The divergences of the paper over the likeliest tokens of a position need their probabilities while
sampling, and are not available here.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts import AgainstSampler, GroupRelative, Options
from groupwise.rollouts import LogProbs
from groupwise_algorithms.cispo import cispo

Divergence = Literal["tv", "kl"]
LIMITS: Mapping[Divergence, float] = {"tv": 0.15, "kl": 0.05}


class DPPO(AgainstSampler, advantage=GroupRelative):
    """DPPO, arXiv:2602.04879: limit changes of probabilities, not ratios; for large vocabularies.

        rho = p / q, the probability of the decision now and when it was drawn
        D = |p - q|, or the KL of (q, 1 - q) to (p, 1 - p)
        loss = -stopgrad(min(rho, 20)) A log_prob; 0 if D > max_divergence and A (p - q) > 0

    `clip_fraction` is the share of decisions that lose their gradient.
    """

    class Config(AgainstSampler.Config, GroupRelative.Config):
        divergence: Divergence = Field(
            "tv",
            description="of the two outcomes, this decision or another one: their total variation "
            "(tv) or their KL (kl)",
        )
        max_divergence: float | None = Field(
            None,
            gt=0,
            description="a decision beyond it gets no gradient that leads further away; 0.15 for "
            "tv and 0.05 for kl if unset",
        )
        ratio_cap: float = Field(20.0, gt=1, description="ratios are at most this")
        normalize: objective.Normalize = "token"
        importance: Literal["token", "none"] = Field(
            "token",
            description="compare the policy with what drew the decision (token), or with itself "
            "before the step's first update (none)",
        )

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        limit = self.config.max_divergence
        self.max_divergence = LIMITS[self.config.divergence] if limit is None else limit

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        log_probs, drawn = self._log_probs(current, batch)
        weighted = cispo(
            log_probs,
            log_probs - drawn,
            batch["advantages"],
            low=None,
            high=self.config.ratio_cap - 1,
        )
        return weighted.masked_fill(self._beyond(log_probs, drawn, batch["advantages"]), 0.0)

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t]: 1 at decisions without a gradient, since it would lead further away."""
        beyond = self._beyond(*self._log_probs(current, batch), batch["advantages"])
        return {"clip_fraction": beyond.to(torch.float32)}

    def _log_probs(self, current: LogProbs, batch: Batch) -> tuple[Tensor, Tensor]:
        """[b, t] each: of the policy, and of what drew the decisions; 0 outside the mask."""
        assert current.log_probs is not None
        drawn, padding = self.drawn_log_probs(batch), ~batch["mask"]
        return current.log_probs.masked_fill(padding, 0.0), drawn.masked_fill(padding, 0.0)

    def _beyond(self, log_probs: Tensor, drawn: Tensor, advantages: Tensor) -> Tensor:
        """[b, t] bool: further away than `max_divergence`, and pushed in that direction."""
        log_probs = log_probs.detach()
        of = {"tv": total_variation, "kl": binary_kl}[self.config.divergence]
        away = objective.per_decision(advantages) * (log_probs - drawn) > 0
        return away & (of(log_probs, drawn) > self.max_divergence)


def total_variation(log_probs: Tensor, drawn: Tensor) -> Tensor:
    """|p - q|, of the distributions (p, 1 - p) and (q, 1 - q); p and q as their logs."""
    return (log_probs.exp() - drawn.exp()).abs()


def binary_kl(log_probs: Tensor, drawn: Tensor) -> Tensor:
    """q log(q / p) + (1 - q) log((1 - q) / (1 - p)): the KL of (q, 1 - q) to (p, 1 - p)."""
    # Probabilities of 1, as certain decisions have in float32, would make it inf - inf.
    log_probs, drawn = log_probs.clamp(max=-1e-7), drawn.clamp(max=-1e-7)
    others, others_drawn = (-log_probs.expm1()).log(), (-drawn.expm1()).log()
    return drawn.exp() * (drawn - log_probs) + others_drawn.exp() * (others_drawn - others)
