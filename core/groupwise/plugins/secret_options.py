"""Secret options: the only place where secrets of a configuration are revealed, to plugins alone.

What a key's name tells is wrapped when a configuration is read (`groupwise.config.overrides`); what
only the `Config` of a plugin tells, here.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from groupwise.config.mistakes import below
from groupwise.config.plugin_sections import plugin_sections, section_at
from groupwise.kit import secrets
from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath
from groupwise.plugins.targets import has_config, load_target

if TYPE_CHECKING:
    from groupwise.config.load import LoadedConfig


def resolved(loaded: "LoadedConfig", path: KeyPath, target: Any) -> Mapping[str, Any]:
    """The options at a path as the target gets them: secrets unwrapped, environment variables
    replaced, and objects in their places.

    Raises UserError for secrets that are missing.
    """
    options = section_at(loaded.config, path).options
    problems = [
        loaded.origin.message(key, problem)
        for key, problem in secrets.problems(_wrapped(target, options), path)
    ]
    if problems:
        raise UserError("\n".join(problems))
    passed = {str(at[-1]): own for at, own in loaded.objects.items() if at[:-1] == path}
    return {**secrets.revealed(options), **passed}


def with_secrets(loaded: "LoadedConfig") -> "LoadedConfig":
    """The configuration with all options wrapped that a plugin's `Config` declares secret.

    Sections of Python objects passed in place of names stay as they are.
    """
    config = loaded.config
    for _, path, section in plugin_sections(config):
        if path not in loaded.objects and section.options:
            hidden = _wrapped(load_target(loaded, path), section.options)
            config = _changed(config, path, hidden)
    return replace(loaded, config=config)


def _wrapped(target: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options with those wrapped whose type in the target's `Config` is a secret type."""
    hints = [target.Config] if has_config(target) else []
    hidden: Mapping[str, Any] = secrets.in_types(options, hints, below)
    return hidden


def _changed(section: Any, path: KeyPath, options: Mapping[str, Any]) -> Any:
    """A section, or a list of them, with other options where `path` leads."""
    if not path:
        return section.model_copy(update=options)
    key, rest = path[0], path[1:]
    if isinstance(section, list):
        return [_changed(x, rest, options) if i == key else x for i, x in enumerate(section)]
    return section.model_copy(
        update={str(key): _changed(getattr(section, str(key)), rest, options)}
    )
