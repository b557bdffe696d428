"""Dr. GRPO: GRPO without the divisions that bias it.

When to use it: completions grow longer without getting better, or prompts differ much in difficulty
and should count by how much their rewards differ. It assumes rewards on one scale, since nothing
rescales them, and a limit on the length of completions, by which it divides.
"""

from groupwise import advantages, objective
from groupwise.algorithms.grpo import GRPO


class DrGRPO(GRPO):
    """Dr. GRPO, arXiv:2503.20783: not divided by std or own length, if wrong answers keep growing.

        A = r - mean of the group

    `length`, the constant divisor, is the policy's longest completion unless set.
    """

    class Config(GRPO.Config):
        scale: advantages.Scale = "none"
        normalize: objective.Normalize = "constant"
