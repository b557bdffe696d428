"""FlowDPPO: a trust region for the Gaussians of denoising steps, in place of a clip range.

When to use it: several updates per step with `policy: flow`. A clip of the ratio looks at the
sample that was drawn, so it stops steps whose noise happened to lie far out and lets others move
on; here a step loses its gradient once its Gaussian has moved too far from the one that was drawn
from, and the gradient would move it further. With one update per step it is `flow_grpo`.

Where implementations differ: the KL is exact, averaged over a latent's dimensions as log-probs are,
and the std is the step's, as in verl-omni (`add_kl_coefficient: true`).
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts import Options
from groupwise.rollouts import LogProbs
from groupwise_flow.algorithms.gaussian import Gaussian


class FlowDPPO(Gaussian):
    """Flow-DPPO, arXiv:2606.11025: limit the KL of a denoising step's Gaussian, not its ratio.

        D = |mean - old mean|^2 / (2 std^2)
        loss = -rho A; 0 if D >= max_divergence and A (rho - 1) > 0

    `clip_fraction` is the share of decisions that lose their gradient.
    """

    class Config(Gaussian.Config):
        max_divergence: float = Field(
            1e-5,
            gt=0,
            description="a step whose Gaussian is further than this from the one before the first "
            "update, by the KL, gets no gradient that leads further away",
        )
        importance: Literal["token", "none"] = Field(
            "token",
            description="importance weights policy / sampler for rollouts of another sampler or "
            "of older weights",
        )

        ahead: ClassVar[str] = "token"  # the mean of older weights is not known

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.old = self.old | {"mean"}

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        ratio = self.log_ratio(current, batch).exp()
        loss = -ratio * objective.per_decision(batch["advantages"])
        return loss.masked_fill(self._beyond(current, batch), 0.0)

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t]: 1 at decisions without a gradient, since it would lead further away."""
        return {"clip_fraction": self._beyond(current, batch).to(torch.float32)}

    def _beyond(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t] bool: further away than `max_divergence`, and pushed in that direction."""
        mean, std = current.extra["mean"].detach(), current.extra["std"]
        moved = self.log_ratio(current, batch).detach()
        away = objective.per_decision(batch["advantages"]) * moved > 0
        return away & (
            objective.gaussian_kl(mean, batch["old_mean"], std) >= self.config.max_divergence
        )
