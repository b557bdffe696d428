"""Gaussian: what algorithms for decisions that are Gaussian steps share: advantages and KL."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from groupwise.algorithm import Batch
from groupwise.algorithms.parts import GroupRelative, Options, Usual
from groupwise.kit.errors import UserError
from groupwise.rollouts import LogProbs


class Gaussian(Usual, advantage=GroupRelative):
    """Group-relative advantages, clipped, and the exact KL of Gaussians of the same std.

    What is missing is a surrogate.
    """

    class Config(Usual.Config, GroupRelative.Config):
        kl: Literal["exact", "published"] = Field(  # type: ignore[assignment]
            "exact",
            description="exact: KL of the steps' Gaussians; published: as in Flow-GRPO's code for "
            "`sde: flow`, the exact KL times the step's (sigma - sigma_next)",
        )
        advantage_clip: float | None = Field(
            5.0, gt=0, description="advantages are clipped to [-advantage_clip, advantage_clip]"
        )

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.needs |= {"mean", "std"}  # only policies with Gaussian decisions provide them
        if self.config.beta and self.config.kl == "published":
            self.needs |= {"interval"}

    def check(self, policy_config: Any) -> None:
        """Refuse `kl: published` unless `sde: flow`: for other SDEs published code has the exact
        KL."""
        kind = getattr(policy_config, "sde", "flow")
        if self.config.beta and self.config.kl == "published" and kind != "flow":
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
        low, high = f"{least:.1f}", f"{most:.1f}"
        factor = low if low == high else f"{low} to {high}"
        advice = {
            "exact": "with a beta of Flow-GRPO's code set algorithm.kl: published",
            "published": "with a beta for the exact KL set algorithm.kl: exact",
        }
        note = (
            f"algorithm.beta: over the trained steps the exact KL is {factor} "
            f"times the published one; algorithm.kl is {self.config.kl}: {advice[self.config.kl]}"
        )
        return (note,)

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: (mean - reference mean)^2 / (2 std^2), averaged over a latent's dimensions."""
        exact = super().kl(current, batch)
        return exact * current.extra["interval"] if self.config.kl == "published" else exact
