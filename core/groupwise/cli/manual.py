"""The tables of docs/configuration.md, made from the sections and from what plugins accept.

    python -m groupwise.cli.manual docs/configuration.md

writes them into the page, between its two marks.
"""

import sys
import types
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from groupwise import balance, hookspecs
from groupwise.config import sections, yaml_lines
from groupwise.config.learners import LearnerSection, StageSection
from groupwise.config.section import PluginSection, Section
from groupwise.config.tracking import TrackerSection
from groupwise.config.train import ReplaySection, TrainSection
from groupwise.plugins import registry as plugins

BEGIN = "<!-- begin: made by python -m groupwise.cli.manual -->"
END = "<!-- end -->"
TABLES: Mapping[str, type[BaseModel]] = {
    "The top level": sections.RunConfig,
    "`policy`, `sampler`, `algorithm`, `evaluation.source`, each of `callbacks`": (PluginSection),
    "Each of `pool`": LearnerSection,
    "Each of `chain`": StageSection,
    "`prompts`": sections.PromptsSection,
    "`prompts.weighting`": sections.WeightingSection,
    "Each of `rewards`": sections.RewardSection,
    "`weight` of one of `rewards`, as a schedule": balance.Schedule,
    "`constraint` of one of `rewards`": balance.Constraint,
    "Each of `watch`": sections.WatchSection,
    "`train`": TrainSection,
    "`train.replay`": ReplaySection,
    "`evaluation`": sections.EvaluationSection,
    "Each of `tracking`": TrackerSection,
}
SHOWN = ("policies", "samplers", "algorithms", "prompts")
"""Kinds of plugins whose options are shown; rewards have pages of their own."""
PLAIN = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path"}
LIMITS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}"}


def tables() -> str:
    """A heading and a table of key, type, default and meaning for every section and plugin."""
    parts = [f"## {title}\n\n{table(model)}" for title, model in TABLES.items()]
    names: dict[type[BaseModel], str] = {}
    for kind, name in _own():
        model: type[BaseModel] = plugins.installed().load(kind, name).Config
        title = f"## {plugins.SINGULAR[kind].capitalize()} `{name}`"
        above = next((base for base in model.__mro__[1:] if base in names), None)
        own = table(model) if above is None else _variant(model, above, names[above])
        parts.append(f"{title}\n\n{own}")
        names[model] = name
    return "\n\n".join(parts)


def _variant(model: type[BaseModel], above: type[BaseModel], name: str) -> str:
    """What differs from the model above it, which is that of `name`."""
    gone = [f"`{key}`" for key in above.model_fields if key not in model.model_fields]
    keys = _changed(model, above) & model.model_fields.keys()
    text = f"As `{name}`" + (f", without {', '.join(gone)}" if gone else "")
    return f"{text}, but for:\n\n{table(model, keys=keys)}" if keys else f"{text}."


def _changed(model: type[BaseModel], above: type[BaseModel]) -> set[str]:
    """The keys that the model states, or a base between it and the model above it."""
    between = [base for base in model.__mro__ if issubclass(base, BaseModel)]
    own = [vars(base).get("__annotations__", {}) for base in between if not issubclass(above, base)]
    return {key for annotations in own for key in annotations}


def _own() -> Iterator[tuple[str, str]]:
    """Kind and name of what this distribution registers."""
    entries = plugins.installed().entries
    for kind in SHOWN:
        for entry in entries:
            if entry.kind == kind and entry.distribution == hookspecs.PROJECT:
                yield kind, entry.name


def table(model: type[BaseModel], *, keys: Container[str] | None = None) -> str:
    """One section as a Markdown table; keys: these alone."""
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    rows += [row for name, row in _rows(model) if keys is None or name in keys]
    return "\n".join(rows)


def _rows(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each key and its row, those of the sections in a plugin's section among them."""
    for name, info in model.model_fields.items():
        kind = _type(info.annotation) + _limits(info)
        meaning = info.description or _inherited(model, name)
        yield name, f"| `{prefix}{name}` | {kind} | {_default(info)} | {meaning} |"
        inner = [part for part in (info.annotation, *get_args(info.annotation)) if _is_model(part)]
        if inner and not issubclass(model, Section):
            yield from _rows(inner[0], f"{prefix}{name}.")


def _inherited(model: type[BaseModel], name: str) -> str:
    """A key's meaning where a variant gives it another default and nothing else."""
    bases = [base for base in model.__mro__ if issubclass(base, BaseModel)]
    meanings = [base.model_fields[name].description for base in bases if name in base.model_fields]
    return next(filter(None, meanings), "")


def _is_model(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def rewritten(page: str) -> str:
    """The page with fresh tables between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


def _type(hint: Any) -> str:
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part) for part in arguments if part is not type(None))
    if origin is tuple:
        return f"list of {len(arguments)} numbers"
    if origin is list:
        item = arguments[0]
        return f"list of {'text' if item is str else _type(item)}s"
    return "mapping" if origin is dict else "section" if _is_model(hint) else "text"


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
        return "required"
    default = info.get_default(call_default_factory=True)
    if default is None:
        return "unset"
    if isinstance(default, PluginSection):
        return f"`{default.name}`"
    if isinstance(default, BaseModel):
        return "see below"
    if isinstance(default, tuple | list):
        return f"`{list(default)}`"
    return f"`{yaml_lines.write({'value': default}).removeprefix('value: ').strip()}`"


if __name__ == "__main__":
    _page = Path(sys.argv[1])
    _page.write_text(rewritten(_page.read_text(encoding="utf-8")), encoding="utf-8")
