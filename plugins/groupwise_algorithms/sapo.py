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

import torch
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
        return sapo(self.log_ratio(current, batch), batch["advantages"], **self._tau)

    def clip_metrics(self, current: LogProbs, batch: Batch) -> Mapping[str, Tensor]:
        """[b, t]: the share of the gradient that the gate passes."""
        ratio = self.log_ratio(current, batch)
        return {"gate": sapo_gate(ratio, batch["advantages"], **self._tau)}

    @property
    def _tau(self) -> dict[str, float]:
        return {"positive": self.config.tau_positive, "negative": self.config.tau_negative}


def sapo(log_ratio: Tensor, advantages: Tensor, *, positive: float, negative: float) -> Tensor:
    """-A sigmoid(tau (rho - 1)) 4 / tau; SAPO, arXiv:2511.20347.

    positive, negative: the temperature tau where A > 0, and where A <= 0. At ratio 1 the gradient
    equals that of -rho A for any tau.
    """
    advantages = objective.per_decision(advantages)
    tau = _temperature(log_ratio, advantages, positive, negative)
    return -advantages * torch.sigmoid(tau * (log_ratio.exp() - 1)) * 4 / tau


def sapo_gate(log_ratio: Tensor, advantages: Tensor, *, positive: float, negative: float) -> Tensor:
    """[B, T]: gradient of `sapo` / gradient of -rho A = 4 p (1 - p), p = sigmoid(tau (rho - 1))."""
    tau = _temperature(log_ratio, objective.per_decision(advantages), positive, negative)
    p = torch.sigmoid(tau * (log_ratio.exp() - 1))
    return 4 * p * (1 - p)


def _temperature(log_ratio: Tensor, advantages: Tensor, positive: float, negative: float) -> Tensor:
    """tau of each decision, in the dtype of `log_ratio`: of floats torch.where makes float32."""
    if_positive, otherwise = log_ratio.new_tensor([positive, negative])
    return torch.where(advantages > 0, if_positive, otherwise)
