"""Objects: what Python code gives in place of names, set aside while the rest is validated."""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.config.kinds import LISTED, SINGLE, kind_at
from groupwise.config.learners import KINDS, LISTS
from groupwise.config.yaml_lines import KeyPath

Objects = Mapping[KeyPath, Any]
"""Python objects given in place of names, by the key path of their section."""


def laid_over(key: str, under: Any, value: Any) -> Any:
    """A section with the keys of `value` over its own, unless that names another plugin."""
    if isinstance(under, str) and kind_at((key,)) is not None:
        under = {"name": under}
    if not isinstance(under, Mapping) or not isinstance(value, Mapping):
        return value
    same = value.get("name", under.get("name")) == under.get("name")
    return {**under, **value} if same else value


def set_aside(key: str, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """Put Python objects into `objects` and return sections that name them."""
    if key in LISTED:
        items = (
            list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        )
        return [_name_object((key, number), item, objects) for number, item in enumerate(items)]
    if key == "prompts":
        return _named_rows((key,), value, objects)
    if key in LISTS and isinstance(value, Sequence) and not isinstance(value, str):
        return [_named_parts((key, number), item, objects) for number, item in enumerate(value)]
    if (key,) in SINGLE:
        return _name_object((key,), value, objects)
    if key == "evaluation" and isinstance(value, Mapping) and "source" in value:
        source = value["source"]
        return {**value, "source": _named_rows((key, "source"), source, objects)}
    return value


def _named_parts(path: KeyPath, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """A learner of several: what it names by Python objects."""
    if not isinstance(value, Mapping):
        return value
    parts = {k: _name_object((*path, k), value[k], objects) for k in KINDS if k in value}
    return {**value, **parts}


def _named_rows(path: KeyPath, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """Prompts given in Python: rows, or a source."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        objects[path] = value
        return {"name": "rows"}
    return _name_object(path, value, objects)


def _name_object(path: KeyPath, value: Any, objects: dict[KeyPath, Any]) -> Any:
    """A section that names the object; `{"name": object, ...}` keeps the section's other keys."""
    section: Mapping[str, Any] = value if isinstance(value, Mapping) else {"name": value}
    made = section.get("name")
    if value is None or made is None or isinstance(made, str):
        return value
    objects[path] = made
    name = getattr(made, "__name__", type(made).__name__)
    unnamed = "watched_lambda" if path[0] == "watch" else "lambda"
    return {**section, "name": name.replace("<lambda>", f"{unnamed}_{path[-1]}")}
