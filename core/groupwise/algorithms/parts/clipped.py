"""Clipped: a surrogate."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts.part import Options, Part
from groupwise.rollouts import LogProbs


class Clipped(Part):
    """-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A), of PPO; see `objective.clipped`."""

    slot = "surrogate"

    class Config(Options):
        clip_low: float = Field(0.2, gt=0, description="clip range below 1")
        clip_high: float | None = Field(
            None, gt=0, description="clip range above 1; clip_low if unset"
        )
        ratio_cap: float | None = Field(
            None,
            gt=1,
            description="two-sided or dual clip: upper limit of ratios where the advantage is "
            "negative; must be above 1 + clip_high",
        )

        @model_validator(mode="after")
        def _cap_above_the_clip_range(self) -> Self:
            if self.ratio_cap is None:
                return self
            most = 1 + (self.clip_low if self.clip_high is None else self.clip_high)
            if self.ratio_cap <= most:
                raise ValueError(
                    f"ratio_cap must be more than 1 + clip_high = {most:g}, found "
                    f"{self.ratio_cap:g}: below that it would clip positive advantages, too"
                )
            return self

    config: Config

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        low, high = self.config.clip_low, self.config.clip_high
        self.clip_high = low if high is None else high
        self._range: Mapping[str, Any] = {
            "low": low,
            "high": self.clip_high,
            "cap": self.config.ratio_cap,
        }

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the clipped objective of each decision, unweighted."""
        ratio = self.whole.log_ratio(current, batch)
        return objective.clipped(ratio, batch["advantages"], **self._range)

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t]: 1 at clipped decisions, whose gradient is 0."""
        ratio = self.whole.log_ratio(current, batch)
        cut = objective.is_clipped(ratio, batch["advantages"], **self._range)
        return {"clip_fraction": cut.to(torch.float32)}
