"""CISPO: cut the weight, keep the gradient.

When to use it: with several updates for a step's rollouts, or rollouts of older weights. GRPO's
clip takes the gradient from the decisions that changed most, which are often the rare words at
which a chain of thought turns; here each keeps its own, weighted by a ratio that is bounded. With
one update a step every ratio is 1, and it is GRPO averaged over decisions.

Where implementations differ: the paper and verl cut the ratio to [1 - e_low, 1 + e_high], and the
paper's runs leave it free below; TRL's `epsilon_high` is the largest ratio itself (5 recommended,
after ScaleRL, arXiv:2510.13786; unset it is 0.2, which scales every gradient down), which is 1 +
`clip_high` here. verl's default for both sides is 0.2.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.grpo import GRPO
from groupwise.rollouts import LogProbs


class CISPO(GRPO):
    """CISPO, arXiv:2506.13585: cut the ratio as a weight, so that no decision loses its gradient.

        loss = -stopgrad(clip(rho, 1 - clip_low, 1 + clip_high)) A log_prob

    `clip_fraction` is the share of decisions whose weight was cut; their gradient is not.
    """

    class Config(GRPO.Config):
        clip_low: float | None = Field(  # type: ignore[assignment]
            None, gt=0, description="how far below 1 ratios count; no bound if unset"
        )
        clip_high: float = Field(4.0, gt=0, description="how far above 1 ratios count")
        ratio_cap: ClassVar[None] = None  # type: ignore[misc]
        normalize: objective.Normalize = "token"

    config: Config

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        assert current.log_probs is not None
        return objective.cispo(
            current.log_probs.masked_fill(~batch["mask"], 0.0),
            self.log_ratio(current, batch),
            batch["advantages"],
            low=self.config.clip_low,
            high=self.config.clip_high,
        )

    def damping(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t]: the decisions whose weight `surrogate` has cut."""
        cut = objective.is_capped(
            self.log_ratio(current, batch), low=self.config.clip_low, high=self.config.clip_high
        )
        return {"clip_fraction": cut.to(torch.float32)}
