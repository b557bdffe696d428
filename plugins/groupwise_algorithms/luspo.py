"""LUSPO: GSPO times the length of the completion.

When to use it: with GSPO completions get shorter than the task needs. GSPO divides a completion's
gradient by its length, so long ones are trained less than short ones; here every decision counts
the same. The gradient then grows with the length of completions: clip its norm, or set `length` to
a typical length.

Where implementations differ: the paper and TRL multiply the loss of a completion by its length.
Dividing the sum over its decisions by `length: 1` is the same. KL and entropy bonus are summed in
the same way here; in TRL only the KL is.
"""

from pydantic import Field

from groupwise import objective
from groupwise_algorithms.gspo import GSPO


class LUSPO(GSPO):
    """LUSPO, arXiv:2602.05261: GSPO times the length, if completions must not get shorter.

    rho = exp(mean of the completion's log-ratios)
    loss = -min(rho A, clip(rho, 1 - 2e-3, 1 + 2.5e-3) A)
    """

    class Config(GSPO.Config):
        clip_low: float = Field(2e-3, gt=0, description="clip range below 1")
        clip_high: float | None = Field(
            2.5e-3, gt=0, description="clip range above 1; clip_low if unset"
        )
        normalize: objective.Normalize = "constant"
        length: int | None = Field(
            1,
            ge=1,
            description="divisor of normalize: constant; the longest completion allowed if unset",
        )
