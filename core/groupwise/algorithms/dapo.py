"""DAPO: clip higher above, average over decisions, draw other prompts for dead groups.

When to use it: for long chains of thought, where entropy collapses early and many groups are all
right or all wrong. It assumes that prompts are plenty: refilling samples up to `train.max_refills`
times as much, and what is left are the prompts of middle difficulty.
"""

from pydantic import Field

from groupwise import objective
from groupwise.algorithms.grpo import GRPO


class DAPO(GRPO):
    """DAPO, arXiv:2503.14476: clip higher above, average over decisions, refill dead groups.

        loss = -min(rho A, clip(rho, 1 - 0.2, 1 + 0.28) A)

    The soft overlong punishment of the paper is a reward of its own, `soft_overlong`.
    """

    class Config(GRPO.Config):
        clip_high: float | None = Field(
            0.28, gt=0, description="clip range above 1; clip_low if unset"
        )
        normalize: objective.Normalize = "token"
        refill: bool = True
