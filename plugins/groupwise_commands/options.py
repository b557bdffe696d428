"""Options: the options of a section or a plugin, each with key, type, default and meaning."""

import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from groupwise.config.yaml_lines import write
from groupwise.kit.section import PluginSection, Section

REQUIRED, UNSET = "required", "unset"
"""Shown as the default of a required option, and of an optional one that is None."""
PLAIN = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path"}
LIMITS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}"}


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option for display; values in `kind` and `default` are in backticks.

    key: dotted, if the option is in a nested section.
    """

    key: str
    kind: str
    default: str
    meaning: str


def of_model(model: type[BaseModel], prefix: str = "") -> Iterator[Option]:
    """The options of a `Config` or a section; a nested section is followed by its own options."""
    for name, info in model.model_fields.items():
        yield Option(
            key=f"{prefix}{name}",
            kind=_type(info.annotation) + _limits(info),
            default=_default(info),
            meaning=info.description or _inherited(model, name),
        )
        inner = [part for part in (info.annotation, *get_args(info.annotation)) if _is_model(part)]
        if inner and not issubclass(model, Section):
            yield from of_model(inner[0], f"{prefix}{name}.")


def of_arguments(parameters: Sequence[inspect.Parameter]) -> Iterator[Option]:
    """The options of a function, or of a class without a `Config`; their meaning is unknown."""
    for one in parameters:
        kind = "" if one.annotation is one.empty else _type(one.annotation)
        default = REQUIRED if one.default is one.empty else _value(one.default)
        yield Option(key=one.name, kind=kind, default=default, meaning="")


def _inherited(model: type[BaseModel], name: str) -> str:
    """The description from a base class, if a subclass only changed the default."""
    bases = [base for base in model.__mro__ if issubclass(base, BaseModel)]
    meanings = [base.model_fields[name].description for base in bases if name in base.model_fields]
    return next(filter(None, meanings), "")


def _is_model(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def _type(hint: Any) -> str:
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        kinds = dict.fromkeys(_type(part) for part in arguments if part is not type(None))
        return " or ".join(kinds)
    if origin in (list, tuple):
        count = f"{len(arguments)} " if origin is tuple and ... not in arguments else ""
        item = _type(arguments[0])
        return f"list of {count}{item if get_origin(arguments[0]) is Literal else f'{item}s'}"
    return "mapping" if origin in (dict, Mapping) else "section" if _is_model(hint) else "text"


def _limits(info: FieldInfo) -> str:
    limits = [
        LIMITS[name].format(getattr(item, name))
        for item in info.metadata
        for name in LIMITS
        if hasattr(item, name)
    ]
    return f", {', '.join(limits)}" if limits else ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return REQUIRED
    return _value(info.get_default(call_default_factory=True))


def _value(default: Any) -> str:
    if default is None:
        return UNSET
    if isinstance(default, PluginSection):
        return f"`{default.name}`"
    if isinstance(default, BaseModel):
        return "see below"
    if isinstance(default, tuple | list):
        names = [item.name if isinstance(item, PluginSection) else str(item) for item in default]
        return f"`[{', '.join(names)}]`"
    if isinstance(default, Mapping) and default:
        return f"`{{{', '.join(f'{key}: {value}' for key, value in default.items())}}}`"
    return f"`{write({'value': default}).removeprefix('value: ').strip()}`"
