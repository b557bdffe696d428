"""FlowGuard: GRPO-Guard as its authors train flow models with it."""

from torch import Tensor

from groupwise.algorithm import Batch
from groupwise.algorithms.guard import Guard
from groupwise.rollouts import LogProbs
from groupwise_flow.algorithm import FlowGRPO


class FlowGuard(Guard, FlowGRPO):
    """GRPO-Guard for flow models, arXiv:2510.22319: its ratio, and each step by its fall of sigma.

        rho = exp((log-ratio + |mean - old mean|^2 / (2 std^2)) std)
        loss = -min(rho A, clip(rho, 1 - 1e-4, 1 + 1e-4) A) / (fall of sigma)

    The rest is `flow_grpo`: exact KL, clipped advantages, and what it warns of.
    """

    class Config(FlowGRPO.Config):
        pass

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())
        self.needs |= {"interval"}

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]; the loss is divided, and not the KL."""
        return super().surrogate(current, batch) / current.extra["interval"]
