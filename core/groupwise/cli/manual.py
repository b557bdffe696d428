"""The tables of docs/configuration.md, generated from the sections and the options of plugins.

    python -m groupwise.cli.manual docs/configuration.md

replaces the tables of the page, between the lines `BEGIN` and `END`.
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
    "`policy`, `sampler`, `algorithm`, `evaluation.source`, each of `callbacks` and `reports`": (
        PluginSection
    ),
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
"""Kinds of plugins whose options are listed here; those of rewards are in docs/rewards.md."""


def tables() -> str:
    """A heading and a table of key, type, default and meaning for every section and plugin.

    Of a plugin whose options inherit from those of an earlier one, only the differences.
    """
    parts = [f"## {title}\n\n{table(model)}" for title, model in TABLES.items()]
    names: dict[type[BaseModel], str] = {}
    for kind, name in _builtin():
        model: type[BaseModel] = plugins.installed().load(kind, name).Config
        title = f"## {plugins.SINGULAR[kind].capitalize()} `{name}`"
        base = next((each for each in model.__mro__[1:] if each in names), None)
        options = table(model) if base is None else _variant(model, base, names[base])
        parts.append(f"{title}\n\n{options}")
        names[model] = name
    return "\n\n".join(parts)


def _variant(model: type[BaseModel], base: type[BaseModel], name: str) -> str:
    """How the options differ from those of its base class, the options of plugin `name`."""
    removed = [f"`{key}`" for key in base.model_fields if key not in model.model_fields]
    keys = _changed(model, base) & model.model_fields.keys()
    text = f"The options of `{name}`" + (f", without {', '.join(removed)}" if removed else "")
    return f"{text}. These are new or changed:\n\n{table(model, keys=keys)}" if keys else f"{text}."


def _changed(model: type[BaseModel], base: type[BaseModel]) -> set[str]:
    """The keys that the model declares itself, or inherits from a class between it and `base`."""
    classes = [each for each in model.__mro__ if issubclass(each, BaseModel)]
    own = [vars(each).get("__annotations__", {}) for each in classes if not issubclass(base, each)]
    return {key for annotations in own for key in annotations}


def _builtin() -> Iterator[tuple[str, str]]:
    """Kind and name of each plugin of this distribution whose options are shown."""
    entries = plugins.installed().entries
    for kind in SHOWN:
        for entry in entries:
            if entry.kind == kind and entry.distribution == hookspecs.PROJECT:
                yield kind, entry.name


def table(model: type[BaseModel], *, keys: Container[str] | None = None) -> str:
    """The options of a model as a Markdown table; keys: only these, all if None."""
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{option.key}` | {option.kind} | {option.default} | {option.meaning} |"
        for option in of_model(model)
        if keys is None or option.key.partition(".")[0] in keys
    ]
    return "\n".join(rows)


def rewritten(page: str) -> str:
    """The page with new tables between `BEGIN` and `END`."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    _page = Path(sys.argv[1])
    _page.write_text(rewritten(_page.read_text(encoding="utf-8")), encoding="utf-8")
