"""FlowGuard: GRPO-Guard for flow models."""

from typing import Any

from torch import Tensor

from groupwise.algorithm import Batch
from groupwise.algorithms.parts import GuardedRatio, Options, Weighted
from groupwise.kit.errors import UserError
from groupwise.rollouts import LogProbs
from groupwise_flow.algorithms.flow_grpo import FlowGRPO


class FlowGuard(FlowGRPO, ratio=GuardedRatio):
    """GRPO-Guard for images, arXiv:2510.22319: `flow_grpo`, clipped alike at every step.

        rho = exp((log-ratio + |mean - old mean|^2 / (2 std^2)) std)
        loss = -min(rho A, clip(rho, 1 - 1e-4, 1 + 1e-4) A) / (sigma - sigma_next)

    The first line centres ratios at 1 for every step, so that clipping works for all of them; the
    division evens out gradients between steps, for `sde: flow` and `dance`; `cps` and `ddim` are
    refused. All else is as in `flow_grpo`.
    """

    class Config(Weighted, FlowGRPO.Config):
        pass

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.needs |= {"interval"}

    def check(self, policy_config: Any) -> None:
        """Refuse `sde: cps` and `ddim`: the division evens out gradients only where the derivative
        of a step's mean by the velocity is proportional to sigma - sigma_next, as for flow and
        dance."""
        super().check(policy_config)
        kind = getattr(policy_config, "sde", "flow")
        if kind in ("cps", "ddim"):
            raise UserError(
                "algorithm: flow_guard divides the loss of a step by sigma - sigma_next, to which "
                f"with policy.sde: {kind} a step's mean is not proportional, so that nothing would "
                "be evened out; set policy.sde: flow or dance, or algorithm: flow_grpo"
            )

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        """[b, t]; the surrogate is divided by the interval, the KL is not."""
        return super().surrogate(current, batch) / current.extra["interval"]
