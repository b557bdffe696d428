"""GRPO: the group is the baseline.

When to use it: try it first, with any reward and any policy that has log-probs; each variant
changes one thing. It assumes that completions of one prompt are comparable, so that their mean
reward is a fair baseline, and that rewards differ within groups: equal rewards teach nothing.
"""

from groupwise.algorithms.parts import Clipped, GroupRelative, Usual


class GRPO(Usual, advantage=GroupRelative, surrogate=Clipped):
    """GRPO, arXiv:2402.03300: no critic, the group is the baseline; the one to begin with.

        A = (r - mean of the group) / (std of the group + epsilon)
        loss = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)

    plus beta times a KL to the reference, minus an entropy bonus; DeepSeekMath, eq. 3. A is 0 in
    groups whose std is below `least_std`: their rewards differ by noise. rho is
    exp(log_prob - log_prob before the step's first update). Defaults are TRL's, with two
    exceptions: TRL's `normalize` is DAPO's `token`, and TRL multiplies the KL by the ratio.
    `ratio_cap` is TRL's `delta` and verl's `clip_ratio_c`: see `objective.clipped`.
    """

    class Config(Usual.Config, GroupRelative.Config, Clipped.Config):
        pass

    config: Config
