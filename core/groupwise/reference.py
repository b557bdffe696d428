"""The tables of docs/configuration.md, made from the sections themselves.

    python -m groupwise.reference docs/configuration.md

writes them into the page, between its two marks.
"""

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from groupwise import sections, yaml_lines

BEGIN = "<!-- begin: made by python -m groupwise.reference -->"
END = "<!-- end -->"
TABLES: Mapping[str, type[BaseModel]] = {
    "The top level": sections.RunConfig,
    "`policy`, `algorithm`, `evaluation.source`, and each of `callbacks`": sections.PluginSection,
    "`prompts`": sections.PromptsSection,
    "Each of `rewards`": sections.RewardSection,
    "Each of `watch`": sections.WatchSection,
    "`train`": sections.TrainSection,
    "`evaluation`": sections.EvaluationSection,
}
PLAIN = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path"}
LIMITS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}"}


def tables() -> str:
    """Every core section as a heading and a table of key, type, default and meaning."""
    parts = [f"## {title}\n\n{table(model)}" for title, model in TABLES.items()]
    return "\n\n".join(parts)


def table(model: type[BaseModel]) -> str:
    """One section as a Markdown table."""
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, info in model.model_fields.items():
        kind = _type(info.annotation) + _limits(info)
        rows.append(f"| `{name}` | {kind} | {_default(info)} | {info.description} |")
    return "\n".join(rows)


def rewritten(page: str) -> str:
    """The page with fresh tables between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


def _type(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part) for part in arguments if part is not type(None))
    if origin is tuple:
        return f"list of {len(arguments)} numbers"
    return "list of sections" if origin is list else "section"


def _limits(info: FieldInfo) -> str:
    found = [
        LIMITS[name].format(getattr(item, name))
        for item in info.metadata
        for name in LIMITS
        if hasattr(item, name)
    ]
    return f", {', '.join(found)}" if found else ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    if info.default is None:
        return "unset"
    if isinstance(info.default, sections.PluginSection):
        return f"`{info.default.name}`"
    if isinstance(info.default, BaseModel):
        return "see below"
    if isinstance(info.default, tuple | list):
        return f"`{list(info.default)}`"
    return f"`{yaml_lines.write({'value': info.default}).removeprefix('value: ').strip()}`"


if __name__ == "__main__":
    _page = Path(sys.argv[1])
    _page.write_text(rewritten(_page.read_text(encoding="utf-8")), encoding="utf-8")
