"""FlowGRPO: GRPO with what published training of flow models does differently."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from groupwise.algorithm import Batch
from groupwise.algorithms.grpo import GRPO
from groupwise.errors import UserError
from groupwise.rewards import Scores
from groupwise.rollouts import LogProbs, Rollouts
from groupwise_flow import sde

MISMATCH = 0.1
"""A sampler may be this share of the clip range from the policy before the run warns."""


class FlowGRPO(GRPO):
    """Flow-GRPO, arXiv:2505.05470: tiny clip ranges, clipped advantages, an exact KL.

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
        advantage_clip: float = Field(5.0, gt=0, description="advantages are cut at this size")
        guard: bool = Field(False, description="GRPO-Guard's normalised ratio")

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())
        self.mismatch_limit = MISMATCH * self.config.clip_low
        self.needs |= {"mean", "std"}  # without them decisions are no Gaussians
        if self.config.beta > 0:
            self.reference = frozenset({"mean"})
            self.needs |= {"interval"} if self.config.kl == "published" else set()
        if self.config.guard:
            self.needs |= {"interval"}
            self.old = frozenset({"log_probs", "mean"})

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
        error, clip = metrics.get("log_prob_error", 0.0), self.config.clip_low
        if not error > clip:
            return None
        return (
            f"log-probs in this precision are {error:.1e} from those in float32, which is "
            f"{error / clip:.1f} times the clip range of {clip:g}: after a step's first update, "
            f"rounding is clipped as if the policy had changed. Another policy.precision may "
            f"round less"
        )

    def targets(
        self, scores: Scores, rollouts: Rollouts, answers: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        targets = super().targets(scores, rollouts, answers)
        most = self.config.advantage_clip
        return {**targets, "advantages": targets["advantages"].clamp(-most, most)}

    def kl(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: |mean - reference mean|^2 / (2 std^2), averaged over a latent's dimensions."""
        exact = self._apart(current, batch["reference_mean"])
        return exact * current.extra["interval"] if self.config.kl == "published" else exact

    def log_ratio(self, current: LogProbs, batch: Batch) -> Tensor:
        """The plain log-ratio, or GRPO-Guard's, arXiv:2510.22319, eq. 8.

        The log-ratio of a Gaussian step has mean -|dmean|^2 / (2 std^2) and a spread that differs
        from step to step; Guard adds the first and multiplies by the std. In a step's first update
        the means have not moved yet, so there is nothing to add.
        """
        ratio = super().log_ratio(current, batch)
        if not self.config.guard:
            return ratio
        moved = self._apart(current, batch["old_mean"])
        return (ratio + moved.masked_fill(~batch["mask"], 0.0)) * current.extra["std"]

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]; Guard's authors also divide it, and not the KL, by the step's fall of sigma."""
        clipped = super().surrogate(current, batch)
        return clipped / current.extra["interval"] if self.config.guard else clipped

    def _apart(self, current: LogProbs, other: Tensor) -> Tensor:
        """[b, t]: KL between the step's Gaussian and one of the same std and another mean."""
        mean, std = current.extra["mean"], current.extra["std"]
        wide = std.view(-1, *[1] * (mean.ndim - 2))
        return sde.divergence(mean.flatten(0, 1), other.flatten(0, 1), wide).view(std.shape)
