"""BNPO: GRPO averaged over the decisions of the batch.

When to use it: where completions differ much in length, and a decision of a long one should count
as much as one of a short one. GRPO counts each completion the same, so decisions of long wrong ones
hardly count; that is the only difference.

Where implementations differ: TRL (`loss_type: bnpo`, whence the name) divides by the decisions of a
micro-batch and averages micro-batches, so its gradient depends on how a batch is cut; here, as in
TRL's and the paper's `dapo`, it is the decisions of the whole update. Beta Normalization Policy
Optimization, which has the same initials, is another thing.
"""

from groupwise import objective
from groupwise.algorithms.grpo import GRPO


class BNPO(GRPO):
    """BNPO, of TRL: GRPO averaged over the decisions of the batch, not over completions.

    loss = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
    """

    class Config(GRPO.Config):
        normalize: objective.Normalize = "token"
