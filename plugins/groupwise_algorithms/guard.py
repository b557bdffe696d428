"""GRPO-Guard: log-ratios with the same mean and spread at every denoising step.

When to use it: several updates per step, for policies whose decisions are Gaussians (they give
`mean` and `std`). The log-ratio of two Gaussians is negative on average, with a spread of 1 / std.
One clip range for all then clips steps of small noise always and the others never, and mostly where
the advantage is negative, so that nothing opposes reward hacking. It assumes a std that is not
trained. With one update per step every ratio is 1, and all that remains is a factor std in the
gradient of each denoising step.

Where implementations differ: for flow matching the authors also divide the loss of a denoising step
by its decrease of sigma; `flow_guard` does that, and has the other defaults for images.
"""

from typing import Literal

from pydantic import Field

from groupwise import objective
from groupwise.algorithms.grpo import GRPO
from groupwise.algorithms.parts import GuardedRatio, Weighted


class Guard(GRPO, ratio=GuardedRatio):
    """GRPO-Guard, arXiv:2510.22319: log-ratios of the same mean and spread at every denoising step.

    rho = exp((log-ratio + |mean - old mean|^2 / (2 std^2)) std)
    loss = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
    """

    class Config(Weighted, GRPO.Config):
        kl: objective.Estimator | Literal["exact"] = Field(
            "exact",
            description="how the KL is computed: in closed form for Gaussians, or estimated from "
            "log-probs by k1, k2 or k3",
        )
