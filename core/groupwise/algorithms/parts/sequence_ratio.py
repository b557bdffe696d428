"""SequenceRatio: one ratio for a whole completion."""

from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts.part import Part
from groupwise.rollouts import LogProbs


class SequenceRatio(Part):
    """exp(mean of the completion's log-ratios), the geometric mean of the decisions' ratios."""

    slot = "ratio"
    couples_decisions = True

    def log_ratio(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]: the mean of a completion's log-ratios, with the gradient of the decision's own.

        GSPO-token, arXiv:2507.18071, eq. 14. With one advantage per completion the gradient equals
        that of the mean; with process rewards every decision gets the gradient of its own
        advantage.
        """
        of_decision = super().log_ratio(current, batch)
        assert current.log_probs is not None
        mean = objective.sequence_log_ratio(
            current.log_probs, batch["old_log_probs"], batch["mask"]
        )
        return mean.detach() + of_decision - of_decision.detach()
