"""AdamW as the configuration names it: of torch, or of bitsandbytes in 8 bits."""

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from groupwise.config.train import TrainSection
from groupwise.kit.errors import UserError, first_line


def make_adamw(groups: list[dict[str, Any]], settings: TrainSection) -> Any:
    """torch's AdamW, or that of bitsandbytes, which keeps its moments in 8 bits.

    groups: parameter groups as torch's optimizers take them: `params` and further options.

    Raises UserError if bitsandbytes is not installed, or does not support the parameters' device.
    """
    options: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": settings.betas,
        "eps": settings.epsilon,
        "weight_decay": settings.weight_decay,
    }
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, **options)
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(
            "train.optimizer: adamw_8bit needs bitsandbytes, which is not installed: "
            "pip install 'groupwise[quantized]', or set train.optimizer: adamw"
        )
    from groupwise.learning.adamw_8bit import AdamW8bit

    _check_device({p.device for group in groups for p in group["params"]}, AdamW8bit)
    return AdamW8bit(groups, **options)


def _check_device(devices: Iterable[torch.device], make: Callable[[list[Tensor]], Any]) -> None:
    """Try a step on each device: bitsandbytes fails only then on one that it does not support."""
    for device in devices:
        weight = torch.nn.Parameter(torch.zeros(64, 64, device=device))
        weight.grad = torch.ones_like(weight)
        try:
            make([weight]).step()
        except Exception as error:  # NotImplementedError, RuntimeError, AttributeError, ...
            raise UserError(
                f"train.optimizer: adamw_8bit does not run on {device.type}: "
                f"{first_line(error)}; set train.optimizer: adamw"
            ) from error
