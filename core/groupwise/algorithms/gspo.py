"""GSPO: one ratio a completion.

When to use it: with several updates for a step's rollouts, and where single decisions' ratios are
noise (long completions, mixtures of experts). It assumes that a completion is judged as a whole;
with one update a step every ratio is 1, and it is GRPO.
"""

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.grpo import GRPO
from groupwise.rollouts import LogProbs


class GSPO(GRPO):
    """GSPO, arXiv:2507.18071: one importance ratio a completion, and a clip range to go with it.

        rho = exp(mean of the completion's log-ratios)
        loss = -min(rho A, clip(rho, 1 - 3e-4, 1 + 4e-4) A)

    The ratio is the geometric mean of the decisions' ratios, so it stays near 1.
    """

    couples_decisions = True

    class Config(GRPO.Config):
        clip_low: float = Field(3e-4, gt=0, description="clip range below 1")
        clip_high: float | None = Field(
            4e-4, gt=0, description="clip range above 1; clip_low if unset"
        )

    def log_ratio(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the mean of a completion's log-ratios, with the gradient of the decision's own.

        GSPO-token, eq. 14: with one advantage for all of a completion the gradient is that of the
        mean; with process rewards every decision learns from its own.
        """
        own = super().log_ratio(current, batch)
        assert current.log_probs is not None
        mean = objective.sequence_log_ratio(
            current.log_probs, batch["old_log_probs"], batch["mask"]
        )
        return mean.detach() + own - own.detach()
