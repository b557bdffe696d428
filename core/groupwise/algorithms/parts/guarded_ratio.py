"""GuardedRatio: log-ratios of Gaussians with the same mean and spread at every denoising step."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts.part import Options, Part
from groupwise.rollouts import LogProbs


class Weighted(Options):
    """`importance` without `ratio`: the ratio here needs the mean by which a decision was drawn,
    and of other weights only the log-prob is known."""

    importance: Literal["token", "sequence", "none"] = Field(
        "token",
        description="importance weights policy / sampler for rollouts of another sampler or of "
        "older weights: of each decision (token), or of the whole completion (sequence)",
    )

    ahead: ClassVar[str] = "token"


class GuardedRatio(Part):
    """(log-ratio + |mean - old mean|^2 / (2 std^2)) std; see `objective.guarded_log_ratio`.

    For policies that give `mean` and `std`. A variant's `Config` begins with `Weighted`.
    """

    slot = "ratio"
    needs = frozenset({"mean", "std"})
    old = frozenset({"mean"})

    def log_ratio(self, current: LogProbs, batch: Batch) -> Tensor:
        return objective.guarded_log_ratio(
            super().log_ratio(current, batch),
            current.extra["mean"],
            batch["old_mean"],
            current.extra["std"],
            batch["mask"],
        )
