"""CISPO: clip the importance weight, keep every decision's gradient.

When to use it: several updates per step, or rollouts of older weights. GRPO's clip removes the
gradient of the decisions whose ratio changed most, often the rare words at which a chain of thought
turns; here each decision keeps its gradient, multiplied by a bounded ratio. With one update per
step every ratio is 1, and it is GRPO averaged over decisions.

Where implementations differ: the paper and verl clip the ratio to [1 - e_low, 1 + e_high], and the
paper's runs have no lower bound. TRL's `epsilon_high` is the largest ratio itself, so 1 +
`clip_high` here (TRL recommends 5, after ScaleRL, arXiv:2510.13786; its default of 0.2 scales every
gradient down). verl's default for both sides is 0.2.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts import GroupRelative, Usual
from groupwise.rollouts import LogProbs


class CISPO(Usual, advantage=GroupRelative):
    """CISPO, arXiv:2506.13585: clip the ratio as a weight, so that no decision loses its gradient.

        loss = -stopgrad(clip(rho, 1 - clip_low, 1 + clip_high)) A log_prob

    `clip_fraction` is the share of decisions whose weight was clipped; they keep their gradient.
    """

    class Config(Usual.Config):
        clip_low: float | None = Field(
            None, gt=0, description="ratios are at least 1 - this; no lower bound if unset"
        )
        clip_high: float = Field(4.0, gt=0, description="ratios are at most 1 + this")
        normalize: objective.Normalize = "token"

        ahead: ClassVar[str] = "token"  # no decision loses its gradient

    config: Config

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        assert current.log_probs is not None
        return cispo(
            current.log_probs.masked_fill(~batch["mask"], 0.0),
            self.log_ratio(current, batch),
            batch["advantages"],
            low=self.config.clip_low,
            high=self.config.clip_high,
        )

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t]: 1 at decisions whose weight `surrogate` clips, else 0."""
        cut = is_capped(
            self.log_ratio(current, batch), low=self.config.clip_low, high=self.config.clip_high
        )
        return {"clip_fraction": cut.to(torch.float32)}


def cispo(
    log_probs: Tensor, log_ratio: Tensor, advantages: Tensor, *, low: float | None, high: float
) -> Tensor:
    """-stopgrad(clip(rho, 1 - low, 1 + high)) A log_prob; CISPO, arXiv:2506.13585, eq. 4.

    log_probs, log_ratio: [B, T], finite everywhere. low: None for no bound below.
    Only the weight is clipped, so every decision keeps its gradient.
    """
    bottom = None if low is None else 1 - low
    weight = log_ratio.detach().exp().clamp(min=bottom, max=1 + high)
    return -weight * objective.per_decision(advantages) * log_probs


def is_capped(log_ratio: Tensor, *, low: float | None, high: float) -> Tensor:
    """[B, T] bool: the decisions whose weight `cispo` clips."""
    ratio = log_ratio.exp()
    above = ratio > 1 + high
    return above if low is None else above | (ratio < 1 - low)
