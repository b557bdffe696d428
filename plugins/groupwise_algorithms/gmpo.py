"""GMPO: the geometric mean of the decisions' ratios, each clipped by itself.

When to use it: several updates per step, and ratios of single decisions that are mostly noise (long
completions, mixtures of experts), as for `gspo`. An outlier moves the geometric mean little, and
each log-ratio is clipped before the mean, so the range can be wide: the paper's is -0.4 to 0.4.
GSPO clips the mean itself, and with it all decisions of a completion. It assumes one reward for the
whole completion. With one update per step every ratio is 1, and it is GRPO.

Where implementations differ: TRL and verl have the range of log-ratios, too, 0.4 by default in TRL.
With step rewards each decision has the gradient of its own advantage, as in `gspo`; verl takes the
mean of a completion's advantages. With `top_entropy_quantile` TRL takes the mean of the chosen
decisions, here it is that of all.
"""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts import GroupRelative, Usual
from groupwise.rollouts import LogProbs


class GMPO(Usual, advantage=GroupRelative):
    """GMPO, arXiv:2507.20673: one ratio per completion, a mean that outliers hardly move.

        d = min(log-ratio, 0.4) if A > 0, else max(log-ratio, -0.4)
        loss = -exp(mean of the completion's d) A

    The range is that of log-ratios: 0.4 bounds a ratio by 1.49.
    """

    couples_decisions = True

    class Config(Usual.Config):
        clip_low: float = Field(
            0.4, gt=0, description="log-ratios are at least minus this, if A < 0"
        )
        clip_high: float | None = Field(
            None, gt=0, description="log-ratios are at most this, if A > 0; clip_low if unset"
        )

    config: Config

    @property
    def clip_high(self) -> float:
        return self.config.clip_low if self.config.clip_high is None else self.config.clip_high

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        advantages, mask = objective.per_decision(batch["advantages"]), batch["mask"]
        ratio = self.log_ratio(current, batch)
        low, high = ratio.clamp(min=-self.config.clip_low), ratio.clamp(max=self.clip_high)
        own = torch.where(advantages < 0, low, high)
        mean = objective.sequence_log_ratio(own, torch.zeros_like(own), mask)
        # The gradient of each decision's own, as in GSPO: with one advantage per completion their
        # sum is the gradient of the mean.
        return -(mean.detach() + own - own.detach()).exp() * advantages

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t]: 1 at clipped decisions, whose gradient is 0."""
        advantages = objective.per_decision(batch["advantages"])
        ratio = self.log_ratio(current, batch)
        low, high = ratio < -self.config.clip_low, ratio > self.clip_high
        cut = (low & (advantages < 0)) | (high & (advantages > 0))
        return {"clip_fraction": cut.to(torch.float32)}
