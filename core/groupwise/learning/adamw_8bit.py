"""AdamW of bitsandbytes, with moments in 8 bits, behind the interface of torch's optimizers."""

from collections.abc import Mapping
from typing import Any

import bitsandbytes
import torch
from torch import Tensor

NAMES = {"state1": "exp_avg", "state2": "exp_avg_sq"}
"""The moments' names in bitsandbytes, and in torch and checkpoints."""


class AdamW8bit(bitsandbytes.optim.AdamW8bit):
    """Tensors of fewer than 4096 numbers keep their moments in float32."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        # Its kernels do not raise a weight's version, by which caches of weights notice changes.
        torch.autograd.graph.increment_version(
            [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        )
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Like torch's: by parameter number, the moments and their scales."""
        state = {
            number: {NAMES.get(name, name): value for name, value in self.state[p].items()}
            for number, p in enumerate(self._parameters())
            if self.state.get(p)
        }
        groups = [{**group, "params": []} for group in self.param_groups]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any], move_to_device: bool = True) -> None:
        """Load what `state_dict` returned, keeping its dtypes; parameter groups do not change."""
        renamed = {torch_name: name for name, torch_name in NAMES.items()}
        parameters = self._parameters()
        self.state.clear()
        for number, values in state_dict["state"].items():
            parameter = parameters[number]
            self.state[parameter] = {
                renamed.get(name, name): int(value) if name == "step" else _copy(value, parameter)
                for name, value in values.items()
            }

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]


def _copy(value: Tensor, parameter: Tensor) -> Tensor:
    return value.to(parameter.device, copy=True)
