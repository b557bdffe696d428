"""Modes: settings of a model's configuration that change its weights in eval mode.

Policies stay in eval mode, so these settings are switched off, and restored for saving.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Setting = tuple[Any, str, Any]
RESCALE = "rescale_every"
"""RWKV: in eval mode, weights are halved in place every so many layers, against overflow in
float16."""


def disable_rescaling(model: Any) -> list[Setting]:
    """Switch off in-place rescaling of weights; returns the settings that were overridden."""
    configs = {id(config): config for config in map(_config, model.modules()) if config is not None}
    changed = []
    for config in configs.values():
        value = getattr(config, RESCALE, 0)
        if value:
            changed.append((config, RESCALE, value))
            setattr(config, RESCALE, 0)
    return changed


@contextmanager
def restored(settings: list[Setting]) -> Iterator[None]:
    """The context in which overridden settings have their original values, for saving."""
    for config, name, value in settings:
        setattr(config, name, value)
    try:
        yield
    finally:
        for config, name, _ in settings:
            setattr(config, name, 0)


def _config(module: Any) -> Any:
    return getattr(module, "config", None)
