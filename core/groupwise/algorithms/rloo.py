"""RLOO: each completion is left out of its own baseline.

When to use it: for small groups, two to four, where a completion's own reward in the mean takes a
good part of its advantage away; the estimate of the policy gradient is unbiased. Where all groups
are of one size it is Dr. GRPO times G / (G - 1), which AdamW does not notice.

Where implementations differ: the paper and TRL take the log-prob of a completion as a whole, with
one ratio (TRL clips it) and the KL to the reference in the reward; here decisions have ratios of
their own and the KL is in the loss, as for GRPO. In a step's first update, without a KL, the
gradients are the same with `length: 1`. TRL also divides by the std of the batch's advantages.
"""

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from groupwise import advantages
from groupwise.algorithms.dr_grpo import DrGRPO
from groupwise.rollouts import Rollouts

if TYPE_CHECKING:
    from groupwise.rewards import Scores


class RLOO(DrGRPO):
    """RLOO, arXiv:2402.14740: each completion is compared with the others of its group alone.

    A = r - mean of the others of the group
    """

    class Config(DrGRPO.Config):
        scale: ClassVar[advantages.Scale] = "none"  # type: ignore[misc]

    def relative(self, scores: "Scores", rollouts: Rollouts) -> Tensor:
        return advantages.leave_one_out(scores.outcome, rollouts.groups)
