"""GSPO: one ratio per completion.

When to use it: several updates per step, and ratios of single decisions that are mostly noise (long
completions, mixtures of experts). It assumes one reward for the whole completion. With one update
per step every ratio is 1, and it is GRPO.
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.grpo import GRPO
from groupwise.rollouts import LogProbs


class GSPO(GRPO):
    """GSPO, arXiv:2507.18071: one ratio per completion, for long ones and mixtures of experts.

        rho = exp(mean of the completion's log-ratios)
        loss = -min(rho A, clip(rho, 1 - 3e-4, 1 + 4e-4) A)

    This is the geometric mean of the decisions' ratios, which stays near 1: hence the narrow range.
    """

    couples_decisions = True

    class Config(GRPO.Config):
        clip_low: float = Field(3e-4, gt=0, description="clip range below 1")
        clip_high: float | None = Field(
            4e-4, gt=0, description="clip range above 1; clip_low if unset"
        )

        ahead: ClassVar[str] = "token"  # so narrow a range is not measured around older weights

    def log_ratio(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the mean of a completion's log-ratios, with the gradient of the decision's own.

        GSPO-token, eq. 14. With one advantage per completion the gradient equals that of the mean;
        with process rewards every decision gets the gradient of its own advantage.
        """
        own = super().log_ratio(current, batch)
        assert current.log_probs is not None
        mean = objective.sequence_log_ratio(
            current.log_probs, batch["old_log_probs"], batch["mask"]
        )
        return mean.detach() + own - own.detach()
