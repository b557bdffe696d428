"""FlashGRPO: one denoising step of each prompt is trained, at a length that all steps share.

When to use it: where an update over a window of steps takes too long, as for videos: an iteration
trains a single step of every picture. Use it with `policy.window: {kind: random, size: 1}`, so that
all pictures of a prompt differ by the noise of the same step, and prompts by the step.

Where implementations differ: the weight evens out how long the gradient of a log-prob by the
velocity is. The paper gives it for Flow-SDE; here it is the same quantity for every `sde`.
"""

from typing import Any

from torch import Tensor

from groupwise.algorithm import Batch
from groupwise.algorithms.parts import Options
from groupwise.rollouts import LogProbs
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.algorithms.single_step import check_single


class FlashGRPO(FlowGRPO):
    """Flash-GRPO, arXiv:2605.15980: a single trained step per prompt, weighted by its gradient.

        c = |d mean / d v| / std, for Flow-SDE sqrt(-dt) / g + g sqrt(-dt) (1 - sigma) / (2 sigma)
        loss = -min(rho A, clip(rho, 1 - 1e-4, 1 + 1e-4) A) / c

    with 1 / c divided by its mean over the steps that can be trained. All else is as in
    `flow_grpo`.
    """

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.needs |= {"relative_slope"}

    def check(self, policy_config: Any) -> None:
        """Refuse windows of several steps."""
        super().check(policy_config)
        check_single("flash_grpo", policy_config)

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]; the surrogate is divided by c, the KL is not."""
        return super().surrogate(current, batch) / current.extra["relative_slope"]
