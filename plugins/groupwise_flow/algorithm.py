"""FlowGRPO: GRPO with what published training of flow models does differently."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from groupwise.algorithm import Batch
from groupwise.algorithms.grpo import GRPO
from groupwise.errors import UserError
from groupwise.rollouts import LogProbs

MISMATCH = 0.1
"""A sampler may be this share of the clip range from the policy before the run warns."""


class FlowGRPO(GRPO):
    """Flow-GRPO, arXiv:2505.05470: tiny clip ranges, clipped advantages, an exact KL.

        A = (r - mean of the group) / (std of the group + epsilon), cut at 5
        loss = -min(rho A, clip(rho, 1 - 1e-4, 1 + 1e-4) A)

    Log-probs are averages over a latent's dimensions, so ratios stay near 1 and clip ranges are of
    the order of 1e-4. The KL of two Gaussians of the same std needs no estimator.
    """

    class Config(GRPO.Config):
        clip_low: float = Field(1e-4, gt=0, description="clip range below 1")
        kl: Literal["exact", "published"] = Field(  # type: ignore[assignment]
            "exact",
            description="exact: that of the Gaussians; published: as Flow-GRPO's code divides it "
            "for `sde: flow`, smaller by the step's fall of sigma",
        )
        advantage_clip: float | None = Field(
            5.0, gt=0, description="advantages are cut at this size"
        )

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())
        self.mismatch_limit = MISMATCH * self.clip
        self.needs |= {"mean", "std"}  # without them decisions are no Gaussians
        if self.config.beta > 0 and self.config.kl == "published":
            self.needs |= {"interval"}

    @property
    def clip(self) -> float:
        """The narrower side of the clip range."""
        return min(side for side in (self.config.clip_low, self.clip_high) if side is not None)

    def check(self, policy_config: Any) -> None:
        """Refuse the published divisor where published code has none: it is Flow-SDE's alone."""
        kind = getattr(policy_config, "sde", "flow")
        if self.config.beta > 0 and self.config.kl == "published" and kind != "flow":
            raise UserError(
                f"algorithm.kl: published goes with policy.sde: flow, found {kind}, of which "
                f"published code has the exact KL; use that"
            )

    def look(self, metrics: Mapping[str, Any]) -> str | None:
        """A warning where rounding is larger than the clip range; see `Rounding`."""
        error, clip = metrics.get("log_prob_error", 0.0), self.clip
        if not error > clip:
            return None
        return (
            f"log-probs in this precision are {error:.1e} from those in float32, which is "
            f"{error / clip:.1f} times the clip range of {clip:g}: after a step's first update, "
            f"rounding is clipped as if the policy had changed. Another policy.precision may "
            f"round less"
        )

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: |mean - reference mean|^2 / (2 std^2), averaged over a latent's dimensions."""
        exact = super().kl(current, batch)
        return exact * current.extra["interval"] if self.config.kl == "published" else exact
