"""ElboGRPO: GRPO with a likelihood from the final image alone, its evidence lower bound.

When to use it: with `policy: forward_process`, to keep GRPO's objective and its ratio where no path
is kept, or where images are drawn by a sampler without log-probs. Prefer `nft` unless the ratio
matters: this loss has no lower bound. A bad image (A < 0) is pushed away from its velocity by a
square that grows without end, and the clip does not stop it: it acts on the ratio of a step, which
begins at 1 again in the next. With velocity weighting (`policy.likelihood: velocity`) it has
collapsed within tens of steps. Three things bound it here: the weight sigma^2 (`likelihood: x0`,
the policy's default), advantages clipped to [-1, 1], and `most_error`, beyond which a bad image has
no gradient. Watch `image_diversity`, and `limited`, the share of decisions without a gradient.

Where implementations differ: the paper compares this likelihood with those of a path, under several
objectives; here it goes with GRPO's, one ratio for each image. `most_error` is ours.
"""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts import Clipped, Options, SequenceRatio
from groupwise.rollouts import LogProbs
from groupwise_flow.algorithms.velocities import Matching


class ElboGRPO(Matching, ratio=SequenceRatio, surrogate=Clipped):
    """GRPO by the ELBO of final images, arXiv:2602.04663: one ratio per image, without a path.

        log_prob = -sigma^2 |v - (noise - x0)|^2
        rho = exp(mean of the image's log-ratios)
        loss = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)

    plus beta |v - v_reference|^2; 0 where A < 0 and log_prob < most_error x that of the weights
    before training. The weight sigma^2 is the policy's `likelihood`.
    """

    class Config(Clipped.Config, Matching.Config):
        clip_low: float = Field(1e-3, gt=0, description="clip range below 1")
        advantage_clip: float = Field(
            1.0, gt=0, description="advantages are clipped to [-this, this]"
        )
        most_error: float | None = Field(
            1.5,
            gt=1,
            description="a bad image (A < 0) has no gradient where its error, -log_prob, is more "
            "than this times that of the weights before training; no limit if unset",
        )

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.needs = self.needs | {"sigma"}  # log-probs of denoising steps are no ELBO
        if self.config.most_error is not None:
            self.reference = self.reference | {"log_probs"}

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        surrogate = super().surrogate(current, batch)
        return surrogate.masked_fill(self._limited(current, batch), 0.0)

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: |v - v_reference|^2; with beta 0, as a metric, log_prob - reference."""
        if self.config.beta:
            return super().kl(current, batch)
        assert current.log_probs is not None
        return current.log_probs - batch["reference_log_probs"]

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """Those of the clip, and `limited`: 1 at decisions of bad images whose error is too large
        to be increased further."""
        limited = self._limited(current, batch).to(torch.float32)
        return {**super().clip_metrics(current, batch), "limited": limited}

    def _limited(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t] bool: bad images whose error is beyond the limit."""
        assert current.log_probs is not None
        if self.config.most_error is None:
            return torch.zeros_like(batch["mask"])
        bad = objective.per_decision(batch["advantages"]) < 0
        most = self.config.most_error * batch["reference_log_probs"]
        return bad & (current.log_probs.detach() < most)
