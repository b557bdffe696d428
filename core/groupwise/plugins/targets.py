"""Targets: how what a name stands for takes its options."""

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel


def has_config(target: Any) -> bool:
    """Whether a target is built from a nested pydantic `Config`."""
    config = getattr(target, "Config", None)
    return isinstance(config, type) and issubclass(config, BaseModel)


def arguments(kind: str | None, target: Callable[..., Any]) -> list[inspect.Parameter]:
    """The arguments that a configuration may give to a target without a `Config`.

    Raises ValueError for built-in types that have no signature.
    """
    parameters = inspect.signature(target).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if kind == "samplers" or (kind == "reports" and not isinstance(target, type)):
        return named[1:]  # the policy, or the folder, which the core passes
    if kind == "rewards" and not isinstance(target, type):
        return [p for p in named if p.name not in _reward_arguments()]
    return named


def _reward_arguments() -> tuple[str, ...]:
    from groupwise.rewards import OWN_ARGUMENTS

    return OWN_ARGUMENTS
