"""Targets: what the names in a configuration stand for, imported."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from groupwise import registry
from groupwise.config.plugin_sections import kind_at, section_at
from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath

if TYPE_CHECKING:
    from groupwise.config.load import LoadedConfig


def load_target(loaded: "LoadedConfig", path: KeyPath) -> Any:
    """Import what the section at a path names; UserError names the line."""
    kind, name = kind_at(path), section_at(loaded.config, path).name
    assert kind is not None, path
    try:
        return registry.installed().load(kind, name, beside=folders(loaded))
    except UserError as error:
        raise UserError(loaded.origin.message((*path, "name"), str(error))) from error


def folders(loaded: "LoadedConfig") -> list[Path]:
    """Folders to search for modules, besides the current one."""
    return [folder for folder in (loaded.folder, loaded.begun_in) if folder is not None]


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
