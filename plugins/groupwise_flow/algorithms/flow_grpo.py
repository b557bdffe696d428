"""FlowGRPO: GRPO with the changes that published training of flow models makes."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from groupwise.algorithm import Batch
from groupwise.algorithms.grpo import GRPO
from groupwise.algorithms.parts import Options
from groupwise.errors import UserError
from groupwise.rollouts import LogProbs

MISMATCH = 0.1
"""The run warns where sampler and policy log-probs differ by more than this share of the clip
range."""


class FlowGRPO(GRPO):
    """Flow-GRPO, arXiv:2505.05470: GRPO for images, with tiny clip ranges and an exact KL.

        A = (r - mean of the group) / (std of the group + epsilon), clipped to [-5, 5]
        loss = -min(rho A, clip(rho, 1 - 1e-4, 1 + 1e-4) A)

    Log-probs are averaged over a latent's dimensions, so ratios stay near 1 and clip ranges are
    about 1e-4. The KL between two Gaussians of the same std has a closed form, so it is exact.
    """

    class Config(GRPO.Config):
        clip_low: float = Field(1e-4, gt=0, description="clip range below 1")
        kl: Literal["exact", "published"] = Field(  # type: ignore[assignment]
            "exact",
            description="exact: KL of the steps' Gaussians; published: as in Flow-GRPO's code for "
            "`sde: flow`, the exact KL times the step's (sigma - sigma_next)",
        )
        advantage_clip: float | None = Field(
            5.0, gt=0, description="advantages are clipped to [-advantage_clip, advantage_clip]"
        )

        ahead: ClassVar[str] = "token"  # as for GSPO, whose range is narrow, too

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.mismatch_limit = MISMATCH * self.clip
        self.needs |= {"mean", "std"}  # only policies with Gaussian decisions provide them
        if self.config.beta > 0 and self.config.kl == "published":
            self.needs |= {"interval"}

    @property
    def clip(self) -> float:
        """The narrower side of the clip range."""
        return min(side for side in (self.config.clip_low, self.clip_high) if side is not None)

    def check(self, policy_config: Any) -> None:
        """Refuse `kl: published` unless `sde: flow`: for other SDEs published code has the exact
        KL."""
        kind = getattr(policy_config, "sde", "flow")
        if self.config.beta > 0 and self.config.kl == "published" and kind != "flow":
            raise UserError(
                f"algorithm.kl: published goes with policy.sde: flow, found {kind}, for which "
                f"published code uses the exact KL; set algorithm.kl: exact"
            )

    def examine(self, policy_config: Any) -> Sequence[str]:
        """How many times the published KL the exact one is, over the steps that are trained.

        Published code divides by g^2 of the SDE where the exact KL divides by the step's variance
        g^2 (sigma - sigma_next). For other SDEs than `flow` it has the exact KL.
        """
        from groupwise_flow.preflight import intervals  # needs diffusers
        from groupwise_flow.settings import FlowSettings

        if not self.config.beta or not isinstance(policy_config, FlowSettings):
            return ()
        trained = intervals(policy_config) if policy_config.sde == "flow" else None
        if trained is None:
            return ()
        least, most = (float(1 / length) for length in (trained.max(), trained.min()))
        advice = {
            "exact": "with a beta of Flow-GRPO's code set algorithm.kl: published",
            "published": "with a beta for the exact KL set algorithm.kl: exact",
        }
        note = (
            f"algorithm.beta: over the trained steps the exact KL is {least:.1f} to {most:.1f} "
            f"times the published one; algorithm.kl is {self.config.kl}: {advice[self.config.kl]}"
        )
        return (note,)

    def warning(self, metrics: Mapping[str, Any]) -> str | None:
        """A warning where rounding in half precision exceeds the clip range; see `Rounding`."""
        error, clip = metrics.get("log_prob_error", 0.0), self.clip
        if not error > clip:
            return None
        return (
            f"log-probs in this precision differ from those in float32 by {error:.1e}, which is "
            f"{error / clip:.1f} times the clip range of {clip:g}: after a step's first update, "
            f"ratios are clipped because of rounding alone. Try another policy.precision"
        )

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: (mean - reference mean)^2 / (2 std^2), averaged over a latent's dimensions."""
        exact = super().kl(current, batch)
        return exact * current.extra["interval"] if self.config.kl == "published" else exact
