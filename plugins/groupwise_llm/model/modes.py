"""Modes: what a model's own configuration does to it in eval mode, where it stays."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Setting = tuple[Any, str, Any]
RESCALE = "rescale_every"
"""RWKV: weights are halved in place every so many layers, against overflow in float16."""


def quieten(model: Any) -> list[Setting]:
    """Switch off what would change weights in a pass; returns what configurations said of it."""
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
    """The configurations as they were, for a model that is saved."""
    for config, name, value in settings:
        setattr(config, name, value)
    try:
        yield
    finally:
        for config, name, _ in settings:
            setattr(config, name, 0)


def _config(module: Any) -> Any:
    return getattr(module, "config", None)
