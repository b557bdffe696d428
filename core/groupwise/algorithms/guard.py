"""GRPO-Guard: a ratio that is centred and of one spread at every step.

When to use it: for policies whose decisions are Gaussians (they state `mean` and `std`), with
several updates for a step's rollouts. The log-ratio of two Gaussians is below 0 on average and
spreads by 1 / std, so one clip range cuts steps of small noise always and others never, and mostly
where the advantage is negative: the reward is then hacked unopposed. It assumes a std that training
leaves alone. With one update a step every ratio is 1, and what remains is a weight of std for each
step.

Where implementations differ: for flow matching the authors also divide the loss of a step by its
fall of sigma; that is `flow_guard`, with what else images want.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.grpo import GRPO
from groupwise.rollouts import LogProbs


class Guard(GRPO):
    """GRPO-Guard, arXiv:2510.22319: a ratio that is centred and of one spread at every step.

    rho = exp((log-ratio + |mean - old mean|^2 / (2 std^2)) std)
    loss = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
    """

    class Config(GRPO.Config):
        kl: objective.Estimator | Literal["exact"] = Field(
            "exact", description="that of the Gaussians; or estimated from log-probs"
        )

    def __init__(self, config: GRPO.Config | None = None) -> None:
        super().__init__(config or self.Config())
        self.needs |= {"mean", "std"}
        self.old = self.old | {"mean"}

    def log_ratio(self, current: LogProbs, batch: Batch) -> Tensor:
        return objective.guarded_log_ratio(
            super().log_ratio(current, batch),
            current.extra["mean"],
            batch["old_mean"],
            current.extra["std"],
            batch["mask"],
        )
