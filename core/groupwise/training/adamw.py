"""AdamW, by the name that the configuration gives it."""

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from groupwise.config.train import TrainSection
from groupwise.errors import UserError, first_line


def make_adamw(groups: list[dict[str, Any]], settings: TrainSection) -> Any:
    """torch's AdamW, or that of bitsandbytes, which keeps its moments in 8 bits.

    groups: of parameters, as torch's optimizers take them: `params` and what else is of them.

    Raises UserError where bitsandbytes is not installed, or has nothing for the parameters' device.
    """
    options: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": settings.betas,
        "weight_decay": settings.weight_decay,
    }
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, **options)
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(
            "train.optimizer: adamw_8bit is that of bitsandbytes, which is not installed: "
            "pip install 'groupwise[quantized]', or set train.optimizer: adamw"
        )
    from groupwise.training.adamw_8bit import AdamW8bit

    _check_device({p.device for group in groups for p in group["params"]}, AdamW8bit)
    return AdamW8bit(groups, **options)


def _check_device(devices: Iterable[torch.device], make: Callable[[list[Tensor]], Any]) -> None:
    """Try a step there: bitsandbytes says only then that it has nothing for a device."""
    for device in devices:
        weight = torch.nn.Parameter(torch.zeros(64, 64, device=device))
        weight.grad = torch.ones_like(weight)
        try:
            make([weight]).step()
        except Exception as error:  # NotImplementedError, RuntimeError, AttributeError, ...
            raise UserError(
                f"train.optimizer: bitsandbytes has no adamw_8bit for {device.type}: "
                f"{first_line(error)}; set train.optimizer: adamw"
            ) from error
