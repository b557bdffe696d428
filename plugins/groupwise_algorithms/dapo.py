"""DAPO: clip higher above, average over decisions, draw other prompts for dead groups.

When to use it: long chains of thought, where entropy collapses early and many groups are all right
or all wrong. It needs many prompts: refilling samples up to 1 + `train.max_refills` times as many
groups, and keeps mostly prompts of medium difficulty.
"""

from pydantic import Field

from groupwise import objective
from groupwise.algorithms.grpo import GRPO


class DAPO(GRPO):
    """DAPO, arXiv:2503.14476: clip higher, redraw groups that are all right or all wrong.

        loss = -min(rho A, clip(rho, 1 - 0.2, 1 + 0.28) A)

    The soft overlong punishment of the paper is a reward of its own, `soft_overlong`.
    """

    class Config(GRPO.Config):
        clip_high: float | None = Field(
            0.28, gt=0, description="clip range above 1; clip_low if unset"
        )
        normalize: objective.Normalize = "token"
        refill: bool = True
