"""GSPO: one ratio per completion.

When to use it: several updates per step, and ratios of single decisions that are mostly noise (long
completions, mixtures of experts). It assumes one reward for the whole completion. With one update
per step every ratio is 1, and it is GRPO.
"""

from typing import ClassVar

from pydantic import Field

from groupwise.algorithms.grpo import GRPO
from groupwise.algorithms.parts import SequenceRatio


class GSPO(GRPO, ratio=SequenceRatio):
    """GSPO, arXiv:2507.18071: one ratio per completion, for long ones and mixtures of experts.

        rho = exp(mean of the completion's log-ratios)
        loss = -min(rho A, clip(rho, 1 - 3e-4, 1 + 4e-4) A)

    This is the geometric mean of the decisions' ratios, which stays near 1: hence the narrow range.
    """

    class Config(GRPO.Config):
        clip_low: float = Field(3e-4, gt=0, description="clip range below 1")
        clip_high: float | None = Field(
            4e-4, gt=0, description="clip range above 1; clip_low if unset"
        )

        ahead: ClassVar[str] = "token"  # so narrow a range is not measured around older weights
