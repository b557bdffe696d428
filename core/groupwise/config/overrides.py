"""Overrides: `train.steps=5` applied to the data of a configuration."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.config import yaml_lines
from groupwise.config.learners import grpo_unless_named
from groupwise.config.mistakes import described
from groupwise.config.objects import expanded, set_aside
from groupwise.config.plugin_sections import is_list_of_plugins, kind_at
from groupwise.config.yaml_lines import Lines
from groupwise.kit import secrets
from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath

LONGEST = 1_000
"""Characters of a part of a dotted key."""
Override = tuple[KeyPath, Any, str]
"""Key path, value, and how messages quote it."""


def parse(text: str) -> Override:
    """An override `key.sub=value`; the value is YAML."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"override {text!r}: expected key=value, found no '='")
    shown = _shown(key, value)
    data, _ = yaml_lines.read(value, f"override {shown!r}")
    return _key_path(key, shown), data, shown


def from_python(
    values: Mapping[str, Any], data: Mapping[str, Any], objects: dict[KeyPath, Any]
) -> list[Override]:
    """The overrides of keywords: dotted keys and sections. Their objects are set aside.

    A section that `data` has, too, is overridden key by key, unless it names another plugin.
    """
    overrides: list[Override] = []
    for key, passed in values.items():
        value = expanded(passed, kind_at((key,)))
        under = _section(key, data.get(key))
        parts = {_key_path(key, key): value}
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        if both and value.get("name", under.get("name")) == under.get("name"):
            parts = {(key, inner): item for inner, item in value.items()}
        for path, item in parts.items():
            named = set_aside(path, item, objects)
            overrides.append((path, named, _shown(".".join(map(str, path)), named)))
    return overrides


def _section(key: str, value: Any) -> Any:
    """The value of a top-level key without shorthands."""
    if isinstance(value, str) and kind_at((key,)) is not None:
        return {"name": value}
    return grpo_unless_named(value) if key == "algorithm" else value


def _shown(key: str, value: Any) -> str:
    """An override as messages quote it; masked whenever a word in it may name a secret."""
    if not isinstance(value, str | int | float | None):
        return key
    text = f"{key}={value}"
    is_reference = secrets.REFERENCE.fullmatch(str(value).strip())
    if not is_reference and any(map(secrets.is_secret, re.findall(r"[\w-]+", text))):
        return f"{key}={secrets.MASK}"
    return text


def _key_path(key: str, text: str) -> KeyPath:
    """The path of a dotted key; list items are numbers from 0."""
    parts = key.strip().split(".")
    if not all(parts):
        raise UserError(f"override {text!r}: expected a dotted key before '=', found {key!r}")
    if len(parts) > yaml_lines.DEEPEST or max(map(len, parts)) > LONGEST:
        raise UserError(
            f"override {text[:60]!r}...: expected a key of at most {yaml_lines.DEEPEST} parts, "
            f"each of at most {LONGEST} characters"
        )
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def apply(data: Any, overrides: Sequence[Override], lines: Lines) -> tuple[Any, dict[KeyPath, str]]:
    """A copy of the data with the overrides applied, and by path the text of the override.

    Whatever is secret by its key is wrapped in it: everything that a configuration holds comes
    through here. The lines of replaced values are dropped from `lines`.
    """
    data, overridden = secrets.concealed(data), dict[KeyPath, str]()
    for path, value, text in overrides:
        data = secrets.concealed(_set(data, path, (), value, text))
        for known in [known for known in lines if known[: len(path)] == path]:
            del lines[known]
        for known in [known for known in overridden if known[: len(path)] == path]:
            del overridden[known]
        overridden[path] = text
    return data, overridden


def _set(data: Any, rest: KeyPath, done: KeyPath, value: Any, text: str) -> Any:
    if not rest:
        return value
    here, key = (*done, rest[0]), rest[0]
    if isinstance(data, str) and kind_at(done):
        data = {"name": data}
    if data is None and is_list_of_plugins(done):
        data = []  # the file has no such list
    if isinstance(data, list):
        if not isinstance(key, int) or key > len(data):
            raise UserError(
                f"override {text!r}: {'.'.join(map(str, done))} is a list of {len(data)}: "
                f"expected a number from 0 to {len(data)}, found {key!r}"
            )
        inner = data[key] if key < len(data) else None
        return [*data[:key], _set(inner, rest[1:], here, value, text), *data[key + 1 :]]
    if data is None or isinstance(data, Mapping):
        old = {} if data is None else dict(data)
        return {**old, str(key): _set(old.get(str(key)), rest[1:], here, value, text)}
    raise UserError(
        f"override {text!r}: {'.'.join(map(str, done))} is {described(data)}, which has no keys"
    )
