"""LUSPO: GSPO times the length of the completion.

When to use it: where GSPO is wanted and completions get shorter than the task allows. GSPO divides
a completion's gradient by its length, so long ones are held back and pushed less than short ones;
here every decision counts the same. It assumes a gradient as large as completions are long: clip
its norm, or set `length` to a typical one.

Where implementations differ: the paper and TRL multiply the loss of a completion by its length,
which is what dividing the sum over its decisions by `length: 1` does. The KL and the entropy bonus,
where there are any, are summed like the rest, as TRL's KL is; TRL's entropy bonus is not.
"""

from pydantic import Field

from groupwise import objective
from groupwise.algorithms.gspo import GSPO


class LUSPO(GSPO):
    """LUSPO, arXiv:2602.05261: GSPO times a completion's length, so that long ones count in full.

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
