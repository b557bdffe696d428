"""Dr. GRPO: GRPO without the divisions that bias it.

When to use it: where completions grow longer without getting better, or where prompts of very
uneven difficulty should count by how much reward is at stake. It assumes rewards of one scale,
since nothing rescales them, and a known longest completion to divide by.
"""

from groupwise import advantages, objective
from groupwise.algorithms.grpo import GRPO


class DrGRPO(GRPO):
    """Dr. GRPO, arXiv:2503.20783: no std and no own length, the two sources of GRPO's bias.

        A = r - mean of the group

    `length` is the policy's longest completion unless it is set.
    """

    class Config(GRPO.Config):
        scale: advantages.Scale = "none"
        normalize: objective.Normalize = "constant"
