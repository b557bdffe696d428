"""SAPO: a soft gate in place of the clip.

When to use it: several updates per step, where a hard clip removes the whole gradient of some
decisions and nothing of their neighbours'. The gate passes less of the gradient the further a ratio
is from 1, and falls faster where the advantage is negative, since lowering one decision raises all
others a little. Its width is 1 / tau: if ratios differ from 1 by only 1e-4, as for images, tau must
be about 1e4. With one update per step every ratio is 1, and it is GRPO.

Where implementations differ: the paper and TRL average over a completion, then over completions, as
here; Trinity-RFT over all decisions (`normalize: token`). All use the temperatures 1 and 1.05.
"""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.algorithm import Batch
from groupwise.algorithms.parts import GroupRelative, Usual
from groupwise.rollouts import LogProbs


class SAPO(Usual, advantage=GroupRelative):
    """SAPO, arXiv:2511.20347: a soft gate in place of the clip, for several updates per step.

        loss = -A sigmoid(tau (rho - 1)) 4 / tau

    The metric `gate` is the share of the gradient that passes, 1 at ratio 1.
    """

    class Config(Usual.Config):
        tau_positive: float = Field(
            1.0, gt=0, description="temperature of the gate where the advantage is positive"
        )
        tau_negative: float = Field(1.05, gt=0, description="temperature of the gate elsewhere")

        ahead: ClassVar[str] = "token"  # the gate is nearly open where GRPO's clip begins

    config: Config

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        return objective.sapo(self.log_ratio(current, batch), batch["advantages"], **self._tau)

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t]: the share of the gradient that the gate passes."""
        ratio = self.log_ratio(current, batch)
        return {"gate": objective.sapo_gate(ratio, batch["advantages"], **self._tau)}

    @property
    def _tau(self) -> dict[str, float]:
        return {"positive": self.config.tau_positive, "negative": self.config.tau_negative}
