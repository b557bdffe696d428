"""Objects: Python objects passed in place of plugin names or options, apart from validation."""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.config.plugin_sections import is_list_of_plugins, kind_at
from groupwise.kinds import KINDS
from groupwise.kit.options import StandsFor
from groupwise.kit.section import KeyPath
from groupwise.registry import installed

PLAIN = frozenset({type(None), str, bool, int, float, dict, list, tuple, type})
"""Types whose values stand for nothing else."""
Objects = Mapping[KeyPath, Any]
"""Python objects passed in place of plugin names, by the key path of their section, and in place of
options, by the path of the option."""


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
    if isinstance(value, Mapping) and stands_for(value) is None:
        return {key: set_aside((*path, key), item, objects) for key, item in value.items()}
    return _option(path, value, objects)


def expanded(value: Any, kind: str | None) -> Any:
    """A section, or what stands in its place; an object of another library that stands for a plugin
    of this kind becomes the section that names the plugin, with the object as its option."""
    is_section = isinstance(value, Mapping) and stands_for(value) is None
    section: Mapping[str, Any] = value if is_section else {"name": value}
    stands = stands_for(section.get("name"))
    if stands is None or stands.kind != kind:
        return value
    return {**section, "name": stands.plugin, stands.option: section["name"]}


def stands_for(value: Any) -> StandsFor | None:
    """What an object of another library stands for; None for anything else."""
    return None if type(value) in PLAIN else installed().stands_for(value)


def is_model(path: KeyPath) -> bool:
    """Whether the object at this path is a model of another library, an option of a policy: it is
    trained in place."""
    return path[-2:-1] == ("policy",)


def place_of(key: str, value: Any) -> str:
    """The dotted key of a keyword: `policy.tokenizer` for a tokenizer that is passed as
    `tokenizer`; of any other the keyword itself."""
    stands = stands_for(value)
    if stands is None or stands.option != key:
        return key
    return f"{KINDS[stands.kind].sections[0]}.{key}"


def _option(path: KeyPath, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """An option; of an object of another library, which is set aside, its class in brackets."""
    if stands_for(value) is None:
        return value
    objects[path] = value
    return f"<{type(value).__name__}>"


def _below(path: KeyPath, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """A key of a section: an option, or further sections that name plugins."""
    step = set_aside if is_list_of_plugins(path) else _option
    return step(path, value, objects)


def _named(path: KeyPath, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """A section with the object's name; `{"name": object, ...}` keeps the section's other keys."""
    value = expanded(value, kind_at(path))
    section: Mapping[str, Any] = value if isinstance(value, Mapping) else {"name": value}
    plugin = section.get("name")
    if plugin is None or isinstance(plugin, str):
        if not isinstance(value, Mapping):
            return value
        return {key: _below((*path, key), item, objects) for key, item in value.items()}
    objects[path] = plugin
    name = getattr(plugin, "__name__", type(plugin).__name__)
    unnamed = "watched_lambda" if path[0] == "watch" else "lambda"
    return {**section, "name": name.replace("<lambda>", f"{unnamed}_{path[-1]}")}
