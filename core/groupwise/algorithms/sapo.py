"""SAPO: a soft gate in place of the clip.

When to use it: with several updates for a step's rollouts, where a hard clip takes the whole
gradient from some decisions and nothing from their neighbours. The gate lets less through the
further a ratio is from 1, and sooner where the advantage is negative, since lowering one decision
raises all others a little. Its width is 1 / tau, so for policies whose ratios stay near 1 (images:
1e-4) tau must be of the order of 1 / that. With one update a step every ratio is 1, and it is GRPO.

Where implementations differ: the paper and TRL average over a completion, then over completions, as
here; Trinity-RFT over all decisions (`normalize: token`). All take the temperatures 1 and 1.05.
"""

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.grpo import GRPO
from groupwise.algorithms.unclipped import Unclipped
from groupwise.rollouts import LogProbs


class SAPO(GRPO):
    """SAPO, arXiv:2511.20347: a soft gate in place of the clip, narrower for negative advantages.

        loss = -A sigmoid(tau (rho - 1)) 4 / tau

    `gate` is how much of the gradient it lets through, 1 at ratio 1.
    """

    class Config(Unclipped):
        tau_positive: float = Field(
            1.0, gt=0, description="temperature of the gate where the advantage is positive"
        )
        tau_negative: float = Field(1.05, gt=0, description="temperature of the gate elsewhere")

    config: Config

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        return objective.sapo(self.log_ratio(current, batch), batch["advantages"], **self._tau)

    def damping(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t]: the share of the gradient that the gate lets through."""
        ratio = self.log_ratio(current, batch)
        return {"gate": objective.sapo_gate(ratio, batch["advantages"], **self._tau)}

    @property
    def _tau(self) -> dict[str, float]:
        return {"positive": self.config.tau_positive, "negative": self.config.tau_negative}
