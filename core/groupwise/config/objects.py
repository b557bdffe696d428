"""Objects: Python objects passed in place of plugin names, kept apart from validation."""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.config.learners import PLAYERS
from groupwise.config.plugin_sections import LISTED, SINGLE, kind_at
from groupwise.kinds import LEARNER_SECTIONS
from groupwise.section import KeyPath

Objects = Mapping[KeyPath, Any]
"""Python objects passed in place of plugin names, by the key path of their section."""


def laid_over(key: str, under: Any, value: Any) -> Any:
    """`under` updated by the keys of `value`; `value` alone if it names another plugin."""
    if isinstance(under, str) and kind_at((key,)) is not None:
        under = {"name": under}
    if not isinstance(under, Mapping) or not isinstance(value, Mapping):
        return value
    same = value.get("name", under.get("name")) == under.get("name")
    return {**under, **value} if same else value


def set_aside(key: str, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """Move Python objects of a section into `objects`; return the section with names instead."""
    if key in LISTED:
        items = (
            list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        )
        return [_name_object((key, number), item, objects) for number, item in enumerate(items)]
    if key == "prompts":
        return _named_rows((key,), value, objects)
    if key == PLAYERS and isinstance(value, Sequence) and not isinstance(value, str):
        return [_named_parts((key, number), item, objects) for number, item in enumerate(value)]
    if (key,) in SINGLE:
        return _name_object((key,), value, objects)
    if key == "evaluation" and isinstance(value, Mapping) and "source" in value:
        source = value["source"]
        return {**value, "source": _named_rows((key, "source"), source, objects)}
    return value


def _named_parts(path: KeyPath, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """The section of one of several learners."""
    if not isinstance(value, Mapping):
        return value
    own = [key for key in LEARNER_SECTIONS if key in value]
    parts = {key: _name_object((*path, key), value[key], objects) for key in own}
    return {**value, **parts}


def _named_rows(path: KeyPath, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """Prompts passed in Python: rows, or a source."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        objects[path] = value
        return {"name": "rows"}
    return _name_object(path, value, objects)


def _name_object(path: KeyPath, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """A section with the object's name; `{"name": object, ...}` keeps the section's other keys."""
    section: Mapping[str, Any] = value if isinstance(value, Mapping) else {"name": value}
    plugin = section.get("name")
    if value is None or plugin is None or isinstance(plugin, str):
        return value
    objects[path] = plugin
    name = getattr(plugin, "__name__", type(plugin).__name__)
    unnamed = "watched_lambda" if path[0] == "watch" else "lambda"
    return {**section, "name": name.replace("<lambda>", f"{unnamed}_{path[-1]}")}
