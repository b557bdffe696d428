"""The tables of docs/configuration.md, made from the sections and from what plugins accept.

    python -m groupwise.cli.manual docs/configuration.md

writes them into the page, between its two marks.
"""

import sys
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from groupwise import balance, hookspecs
from groupwise.cli.options import of_model
from groupwise.config import sections
from groupwise.config.learners import LearnerSection, StageSection
from groupwise.config.section import PluginSection
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
    rows += [
        f"| `{option.key}` | {option.kind} | {option.default} | {option.meaning} |"
        for option in of_model(model)
        if keys is None or option.key.partition(".")[0] in keys
    ]
    return "\n".join(rows)


def rewritten(page: str) -> str:
    """The page with fresh tables between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    _page = Path(sys.argv[1])
    _page.write_text(rewritten(_page.read_text(encoding="utf-8")), encoding="utf-8")
