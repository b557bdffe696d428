"""Plugin sections: which sections of a configuration name plugins, and of which kind."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from groupwise.config.learners import PLAYERS
from groupwise.config.sections import RunConfig
from groupwise.kinds import KINDS
from groupwise.kit.section import KeyPath, PluginSection

_OF_RUN = {section: kind for kind in KINDS.values() for section in kind.sections}
_OF_LEARNER = {section for section, kind in _OF_RUN.items() if kind.of_learner}
_KINDS = _OF_RUN | {f"{PLAYERS}[].{section}": _OF_RUN[section] for section in _OF_LEARNER}


def kind_at(path: KeyPath) -> str | None:
    """The kind of plugin that the section at this path names; None if it names none."""
    parts = ["[]" if isinstance(part, int) else f".{part}" for part in path]
    kind = _KINDS.get("".join(parts).removeprefix("."))
    return kind.name if kind else None


def is_list_of_plugins(path: KeyPath) -> bool:
    """Whether the value at this path is a list whose items name plugins."""
    return kind_at((*path, 0)) is not None


def plugin_sections(config: RunConfig) -> Iterator[tuple[str, KeyPath, PluginSection]]:
    """Kind, path and section of every plugin that the configuration names.

    Those of learners are last, since policies and samplers take longest to import.
    """
    named = [(kind, path, section) for kind, path, section in _below(config, ())]
    if config.players:  # the run's own sections then stand for nothing
        named = [each for each in named if each[1][0] not in _OF_LEARNER]
    yield from sorted(named, key=lambda each: each[1][-1] in _OF_LEARNER)


def _below(value: Any, path: KeyPath) -> Iterator[tuple[str, KeyPath, PluginSection]]:
    kind = kind_at(path)
    if kind is not None and value is not None:
        yield kind, path, value
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _below(getattr(value, name), (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _below(item, (*path, number))
