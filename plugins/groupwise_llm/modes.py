"""Modes: a model that is trained as it is sampled from, with nothing drawn at random inside."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer

Setting = tuple[Any, str, Any]
RANDOM = ("drop", "jitter")
"""What names of settings contain that make a model draw at random in training mode."""
RESCALE = "rescale_every"
"""RWKV: weights are halved in place every so many layers, against overflow in float16."""


def set_training(model: Any, mode: bool) -> None:
    """Training mode for the layers that are recomputed in the backward pass, and nothing else."""
    for module in model.modules():
        # Models that know no such layers look at their own mode.
        checkpoints = getattr(module, "gradient_checkpointing", False)
        layer = isinstance(module, GradientCheckpointingLayer)
        owner = checkpoints and not any(
            isinstance(part, GradientCheckpointingLayer) for part in module.modules()
        )
        module.training = bool(mode and checkpoints and (layer or owner))


def quieten(model: Any) -> list[Setting]:
    """Set every chance of dropout to 0, on modules and in configurations; returns what these said.

    Layers that are recomputed are in training mode, and many drop out by themselves then. The
    ratio of training to sampling would not be 1.
    """
    changed: list[Setting] = []
    configs: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None:
            configs[id(config)] = config
        for name, value in list(vars(module).items()):
            if _is_random(name, value) or (name == "p" and "Dropout" in type(module).__name__):
                setattr(module, name, 0.0)
    for config in configs.values():
        for name, value in list(vars(config).items()):
            if _is_random(name, value) or (name == RESCALE and value):
                changed.append((config, name, value))
                setattr(config, name, type(value)(0))
    return changed


@contextmanager
def restored(settings: list[Setting]) -> Iterator[None]:
    """The configurations as they were, for a model that is saved."""
    for config, name, value in settings:
        setattr(config, name, value)
    try:
        yield
    finally:
        for config, name, value in settings:
            setattr(config, name, type(value)(0))


def _is_random(name: str, value: Any) -> bool:
    return isinstance(value, float) and value > 0 and any(part in name for part in RANDOM)
