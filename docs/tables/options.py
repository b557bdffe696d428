"""The tables of docs/configuration.md, generated from the sections and the options of plugins.

python docs/tables/options.py docs/configuration.md
"""

from collections.abc import Container, Iterable, Iterator, Mapping

from page import rewrite
from pydantic import BaseModel

from groupwise import hookspecs
from groupwise.algorithms.parts import divergence
from groupwise.config import measures, prompts, sections
from groupwise.config.environment import EnvironmentSection
from groupwise.config.learners import LearnerSection
from groupwise.config.train import KeepSection, ReplaySection, SamplesSection, TrainSection
from groupwise.kinds import KINDS
from groupwise.kit import constraint, schedule
from groupwise.kit.section import PluginSection
from groupwise.registry import installed
from groupwise_commands.options import of_model

TABLES: Mapping[str, type[BaseModel]] = {
    "The top level": sections.RunConfig,
    "Every section that names a plugin": PluginSection,
    "Each of `players`": LearnerSection,
    "`environment`": EnvironmentSection,
    "`prompts`": prompts.PromptsSection,
    "`prompts.weighting`": prompts.WeightingSection,
    "Each of `prompts.sources`": prompts.SourceSection,
    "Each of `rewards`": measures.RewardSection,
    "`weight` of one of `rewards`, as a schedule": schedule.Schedule,
    "`constraint` of one of `rewards`": constraint.Constraint,
    "Each of `watch`": measures.WatchSection,
    "`train`": TrainSection,
    "`train.keep`": KeepSection,
    "`train.replay`": ReplaySection,
    "`train.samples`": SamplesSection,
    "`evaluation`": sections.EvaluationSection,
    "`beta` of an algorithm, as a schedule": divergence.BetaSchedule,
    "`beta` of an algorithm, with a target": divergence.KLTarget,
}


class Nothing(BaseModel):
    """The options of a plugin without any."""


def tables() -> str:
    """A heading and a table of key, type, default and meaning for every section and plugin.

    Of a plugin whose options share parts with those of an earlier one, only the differences; of one
    with the same options only its name.
    """
    parts = [f"## {title}\n\n{table(model)}" for title, model in TABLES.items()]
    names: dict[type[BaseModel], str] = {}
    same: dict[str, str] = {}
    for kind, name in _builtin():
        model: type[BaseModel] = getattr(installed().load(kind, name), "Config", Nothing)
        title = f"## {KINDS[kind].singular.capitalize()} `{name}`"
        base = _base(model, names)
        if base is not None:
            options = _variant(model, base, names[base])
        elif not model.model_fields:
            options = "No options."
        else:
            own = table(model)
            options = same.get(own, own)
            same.setdefault(own, f"The options of `{name}`.")
        parts.append(f"{title}\n\n{options}")
        names[model] = name
    return "\n\n".join(parts)


def _variant(model: type[BaseModel], base: type[BaseModel], name: str) -> str:
    """How the options differ from those of `base`, the options of plugin `name`."""
    removed = [f"`{key}`" for key in base.model_fields if key not in model.model_fields]
    others = [*of_model(base)]
    keys = {option.key.partition(".")[0] for option in of_model(model) if option not in others}
    text = f"The options of `{name}`" + (f", without {', '.join(removed)}" if removed else "")
    return f"{text}. These are new or changed:\n\n{table(model, keys=keys)}" if keys else f"{text}."


def _base(model: type[BaseModel], earlier: Iterable[type[BaseModel]]) -> type[BaseModel] | None:
    """The earlier options from which these inherit; else the first of which these have three
    quarters, by the same part."""
    classes = [each for each in model.__mro__ if issubclass(each, BaseModel)][1:-1]
    known = [*earlier]
    shares = (
        each
        for each in known
        if not set(classes).isdisjoint(each.__mro__)
        and 4 * len(model.model_fields.keys() & each.model_fields.keys())
        >= 3 * len(each.model_fields)
    )
    return next((each for each in classes if each in known), next(shares, None))


def _builtin() -> Iterator[tuple[str, str]]:
    """Kind and name of each plugin of this distribution whose options are shown, those of the core
    first."""
    entries = sorted(installed().entries, key=lambda entry: entry.plugin != "groupwise")
    for kind in KINDS.values():
        for entry in entries if kind.in_manual else ():
            if entry.kind == kind.name and entry.distribution == hookspecs.PROJECT:
                yield kind.name, entry.name


def table(model: type[BaseModel], *, keys: Container[str] | None = None) -> str:
    """The options of a model as a Markdown table; keys: only these, all if None."""
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{option.key}` | {option.kind} | {option.default} | {_cell(option.meaning)} |"
        for option in of_model(model)
        if keys is None or option.key.partition(".")[0] in keys
    ]
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    rewrite(tables())
