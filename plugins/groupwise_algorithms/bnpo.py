"""BNPO: GRPO averaged over the decisions of the batch.

When to use it: completions differ much in length, and a decision of a long one should count as much
as one of a short one. GRPO gives every completion the same weight, so the decisions of long wrong
ones hardly count. That is the only difference.

Where implementations differ: TRL (`loss_type: bnpo`, the source of the name) divides by the number
of decisions of a micro-batch and averages micro-batches, so its gradient depends on the micro-batch
size. Here, as in TRL's and the paper's `dapo`, the divisor is the number of decisions of the whole
update. Beta Normalization Policy Optimization has the same initials and is not this.
"""

from groupwise import objective
from groupwise.algorithms.grpo import GRPO


class BNPO(GRPO):
    """BNPO, from TRL: GRPO averaged over decisions, for completions of very different length.

    loss = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
    """

    class Config(GRPO.Config):
        normalize: objective.Normalize = "token"
