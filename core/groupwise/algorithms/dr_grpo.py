"""Dr. GRPO: GRPO without the divisions that bias it."""

from groupwise import advantages, objective
from groupwise.algorithms.grpo import GRPO


class DrGRPO(GRPO):
    """Dr. GRPO, arXiv:2503.20783: no std and no own length, the two sources of GRPO's bias.

    `length` is the policy's longest completion unless it is set.
    """

    class Config(GRPO.Config):
        scale: advantages.Scale = "none"
        normalize: objective.Normalize = "constant"
