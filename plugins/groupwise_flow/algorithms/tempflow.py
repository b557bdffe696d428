"""TempFlow: pictures of a prompt branch at one denoising step, which gets all the credit.

When to use it: where it matters which step a reward is due to: pictures of a prompt share their
path up to one noisy step and go on without noise, so their rewards differ by that step alone. Use
it with `policy.window: {kind: random, size: 1}` and `policy.shared_noise: true`. Early steps, whose
noise is larger and decides more, count more.

Where implementations differ: the authors branch every picture at each step in turn, in one
iteration; here an iteration has one branching step for each prompt, and the prompts have different
ones.
"""

from typing import Any

from torch import Tensor

from groupwise.algorithm import Batch
from groupwise.algorithms.parts import Options
from groupwise.kit.errors import UserError
from groupwise.rollouts import LogProbs
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.algorithms.single_step import check_single


class TempFlow(FlowGRPO):
    """TempFlow-GRPO, arXiv:2508.04324: credit to the one step at which pictures branch.

        loss = -min(rho A, clip(rho, 1 - 1e-4, 1 + 1e-4) A) std

    with the std of the step's noise, g sqrt(-dt) for Flow-SDE, divided by its mean over the steps
    that can be trained. All else is as in `flow_grpo`.
    """

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.needs |= {"relative_std"}

    def check(self, policy_config: Any) -> None:
        """Refuse windows of several steps, and pictures of a group that do not share a path."""
        super().check(policy_config)
        check_single("tempflow", policy_config)
        if not getattr(policy_config, "shared_noise", True):
            raise UserError(
                "algorithm: tempflow compares pictures that branch from one path at the trained "
                "step; set policy.shared_noise: true"
            )

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]; the surrogate is weighted by the std, the KL is not."""
        return super().surrogate(current, batch) * current.extra["relative_std"]
