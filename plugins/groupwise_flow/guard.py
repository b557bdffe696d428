"""FlowGuard: GRPO-Guard for flow models."""

from torch import Tensor

from groupwise.algorithm import Batch
from groupwise.algorithms.guard import Guard
from groupwise.rollouts import LogProbs
from groupwise_flow.algorithm import FlowGRPO


class FlowGuard(Guard, FlowGRPO):
    """GRPO-Guard for flow models, arXiv:2510.22319: `flow_grpo` against reward hacking.

        rho = exp((log-ratio + |mean - old mean|^2 / (2 std^2)) std)
        loss = -min(rho A, clip(rho, 1 - 1e-4, 1 + 1e-4) A) / (sigma - sigma_next)

    The first line centres ratios at 1 for every step, so that clipping works for all of them; the
    division evens out gradients between steps. All else is as in `flow_grpo`.
    """

    class Config(FlowGRPO.Config):
        pass

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())
        self.needs |= {"interval"}

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]; the surrogate is divided by the interval, the KL is not."""
        return super().surrogate(current, batch) / current.extra["interval"]
