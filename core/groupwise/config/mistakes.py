"""pydantic's validation errors as messages about a configuration: line, key, what was expected."""

import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from groupwise.config.yaml_lines import Lines
from groupwise.kit import secrets
from groupwise.kit.errors import UserError, did_you_mean
from groupwise.kit.section import KeyPath

EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "bool": "true or false",
    "string": "text",
    "path": "a path",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "dict": "a section of keys",
    "model": "a section of keys",
    "none": "nothing",
}
SYNONYMS = {
    "lr": "learning_rate",
    "max_steps": "steps",
    "num_steps": "steps",
    "num_generations": "group_size",
    "num_prompts": "groups_per_step",
    "eval_steps": "every",
    "save_steps": "checkpoint_every",
    "output_dir": "output",
    "clip_range": "clip_low",
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
    "r": "rank",
    "lora_alpha": "alpha",
}
"""Names of other libraries for keys."""
LIMITS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a configuration's values came from: lines of a file, or overrides."""

    source: str
    lines: Lines = field(default_factory=Lines)
    overridden: Mapping[KeyPath, str] = field(default_factory=dict)

    def where(self, path: KeyPath) -> str:
        """'file.yaml, line 3', or the override that set the value."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.overridden:
                return f"override {self.overridden[path[:end]]!r}"
            if path[:end] in self.lines:
                break
            if end == len(path):
                for overridden, text in self.overridden.items():
                    if overridden[:end] == path:
                        return f"override {text!r}"
        line = self.lines.of(path)
        return self.source if line is None else f"{self.source}, line {line}"

    def message(self, path: KeyPath, problem: str) -> str:
        key = ".".join(map(str, path))
        return f"{self.where(path)}: {key}: {problem}" if path else f"{self.where(path)}: {problem}"


def explain(
    error: ValidationError,
    model: type[BaseModel],
    data: Mapping[str, Any],
    origin: Origin,
    *,
    prefix: KeyPath = (),
    extra_names: Sequence[str] = (),
    whole: type[BaseModel] | None = None,
) -> UserError:
    """One UserError with a line for each error.

    data: what was validated; prefix: the path of the section that `model` describes; extra_names:
    further keys that are valid there, for suggestions; whole: the whole configuration, `model` if
    unset.
    """
    lines: dict[str, int] = {}
    for details in error.errors(include_url=False):
        path = _key_path(details, data)
        if details["type"] == "extra_forbidden":
            known = sorted(_names(model, path[:-1])) + (list(extra_names) if path[1:] == () else [])
            problem = unknown_key(str(path[-1]), known, whole or model)
        else:
            hides = secrets.are_types(_hints(model, path)) or any(map(secrets.is_secret, path))
            problem = _problem(details, secrets.HIDDEN if hides else details["input"])
        lines[origin.message((*prefix, *path), problem)] = origin.lines.of((*prefix, *path)) or 0
    return UserError("\n".join(sorted(lines, key=lambda message: lines[message])))


def unknown_key(key: str, known: Sequence[str], whole: type[BaseModel] | None = None) -> str:
    """The message for an unknown key: with that of a section of the whole configuration, if one has
    this name, else the closest of the section itself."""
    meant = {key, SYNONYMS.get(key, key)}
    same = [name for name in known if name in meant]
    elsewhere = [] if whole is None or same else _of_sections(whole, meant)
    if same or elsewhere:
        return f"unknown key, did you mean {(same or elsewhere)[0]!r}?"
    close = did_you_mean(key, known)
    return f"unknown key{close or '; known are ' + (', '.join(known) or 'none')}"


def _of_sections(whole: type[BaseModel], names: Collection[str]) -> list[str]:
    """The dotted keys of sections of a configuration whose last part is one of the names."""
    keys = []
    for section in whole.model_fields:
        for hint in filter(_is_model, below(whole, section)):
            keys += [f"{section}.{name}" for name in hint.model_fields if name in names]
    return sorted(keys, key=lambda key: not key.startswith("train."))


def described(value: Any) -> str:
    """A value for a message, in terms of YAML: "a section with name", "a list of 3"."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return f"a section with {', '.join(map(str, value)) or 'no keys'}"[:60]
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, secrets.TYPES):
        return "a secret"
    text = secrets.redacted(_as_yaml(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _as_yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) > 10**100:  # Python refuses to print very long ones
        return "a number of more than 100 digits"
    return repr(value)


def _problem(details: ErrorDetails, value: Any) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind == "missing":
        return "missing, it has no default"
    if kind in ("at", "value_error"):
        return str(context.get("message") or context.get("error"))
    close = ""
    if kind == "literal_error" and isinstance(value, str):
        close = did_you_mean(value, context["expected"].split("'")[1::2])
    return f"{_expectation(details)}, found {described(value)}{close}"


def _expectation(details: ErrorDetails) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind in LIMITS:
        words, name = LIMITS[kind]
        limit = context[name]
        return f"expected {words} {limit if isinstance(limit, int) else format(limit, 'g')}"
    if kind == "literal_error":
        return f"expected {context['expected']}"
    if kind == "too_short":
        return f"expected at least {context['min_length']} of them"
    if kind == "finite_number":
        return "expected a finite number"
    expected = EXPECTED.get(kind.partition("_")[0])
    if expected and kind.endswith(("_type", "_parsing", "_from_float", "_instance")):
        return f"expected {expected}"
    return f"{details['msg'][:1].lower()}{details['msg'][1:]}"


def _key_path(details: ErrorDetails, data: Any) -> KeyPath:
    """The keys of an error's location, without the members of unions that pydantic puts between."""
    path: list[str | int] = []
    missing = details["loc"][-1:] if details["type"] == "missing" else ()
    for part in details["loc"][: len(details["loc"]) - len(missing)]:
        is_key = isinstance(data, Mapping) and part in data
        if is_key or isinstance(part, int):
            path.append(part)
            data = data[part] if is_key or isinstance(data, list | tuple) else None
    return (*path, *missing, *details.get("ctx", {}).get("path", ()))


def _is_model(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def _names(model: type[BaseModel], path: KeyPath) -> set[str]:
    """The keys of the section at `path` below `model`."""
    return {n for hint in _hints(model, path) if _is_model(hint) for n in hint.model_fields}


def _hints(model: type[BaseModel], path: KeyPath) -> list[Any]:
    """The types at `path` below `model`."""
    hints: list[Any] = [model]
    for part in path:
        hints = [inner for hint in hints for inner in below(hint, part)]
    return hints


def below(hint: Any, part: str | int) -> Iterator[Any]:
    """The types under one key, or one index, of a type."""
    if _is_model(hint):
        if part in hint.model_fields:
            yield from _members(hint.model_fields[str(part)].annotation)
    elif get_args(hint):
        yield from _members(get_args(hint)[-1])


def _members(hint: Any) -> Iterator[Any]:
    if get_origin(hint) in (Union, types.UnionType):
        for member in get_args(hint):
            yield from _members(member)
    elif hasattr(hint, "__metadata__"):
        yield from _members(hint.__origin__)
    else:
        yield hint
