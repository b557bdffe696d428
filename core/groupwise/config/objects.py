"""Objects: Python objects passed in place of plugin names, kept apart from validation."""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.config.plugin_sections import is_list_of_plugins, kind_at
from groupwise.section import KeyPath

Objects = Mapping[KeyPath, Any]
"""Python objects passed in place of plugin names, by the key path of their section."""


def set_aside(path: KeyPath, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """Move the Python objects at and below a path into `objects`, in place of those from before;
    return the value with names in their place."""
    for former in [each for each in objects if each[: len(path)] == path]:
        del objects[former]
    if value is None:
        return None
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if kind_at(path) == "prompts" and is_list:
        objects[path] = value
        return {"name": "rows"}
    if kind_at(path) is not None:
        return _named(path, value, objects)
    if is_list or is_list_of_plugins(path):
        items = value if is_list else [value]
        return [set_aside((*path, number), item, objects) for number, item in enumerate(items)]
    if isinstance(value, Mapping):
        return {key: set_aside((*path, key), item, objects) for key, item in value.items()}
    return value


def _named(path: KeyPath, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """A section with the object's name; `{"name": object, ...}` keeps the section's other keys."""
    section: Mapping[str, Any] = value if isinstance(value, Mapping) else {"name": value}
    plugin = section.get("name")
    if plugin is None or isinstance(plugin, str):
        return value
    objects[path] = plugin
    name = getattr(plugin, "__name__", type(plugin).__name__)
    unnamed = "watched_lambda" if path[0] == "watch" else "lambda"
    return {**section, "name": name.replace("<lambda>", f"{unnamed}_{path[-1]}")}
