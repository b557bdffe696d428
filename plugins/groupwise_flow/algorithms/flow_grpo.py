"""FlowGRPO: GRPO with the changes that published training of flow models makes."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from groupwise.algorithms.parts import Clipped, Options
from groupwise_flow.algorithms.gaussian import Gaussian

MISMATCH = 0.1
"""The run warns where sampler and policy log-probs differ by more than this share of the clip
range."""


class FlowGRPO(Gaussian, surrogate=Clipped):
    """Flow-GRPO, arXiv:2505.05470: GRPO for images, with tiny clip ranges and an exact KL.

        A = (r - mean of the group) / (std of the group + epsilon), clipped to [-5, 5]
        loss = -min(rho A, clip(rho, 1 - 1e-4, 1 + 1e-4) A)

    Log-probs are averaged over a latent's dimensions, so ratios stay near 1 and clip ranges are
    about 1e-4. The KL between two Gaussians of the same std has a closed form, so it is exact.
    """

    class Config(Gaussian.Config, Clipped.Config):
        clip_low: float = Field(1e-4, gt=0, description="clip range below 1")

        ahead: ClassVar[str] = "token"  # as for GSPO, whose range is narrow, too

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.mismatch_limit = MISMATCH * self.clip

    @property
    def clip(self) -> float:
        """The narrower side of the clip range."""
        return min(self.config.clip_low, self.clip_high)

    def warning(self, metrics: Mapping[str, Any]) -> str | None:
        """A warning where rounding in half precision exceeds the clip range; see `Rounding`."""
        error, clip = metrics.get("log_prob_error", 0.0), self.clip
        if not error > clip:
            return super().warning(metrics)
        return (
            f"log-probs in this precision differ from those in float32 by {error:.1e}, which is "
            f"{error / clip:.1f} times the clip range of {clip:g}: after a step's first update, "
            f"ratios are clipped because of rounding alone. Try another policy.precision"
        )
