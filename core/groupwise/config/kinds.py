"""Kinds: which sections of a configuration name plugins, and of which kind."""

from collections.abc import Iterator, Mapping

from groupwise.config.learners import KINDS, LISTS
from groupwise.config.section import PluginSection
from groupwise.config.sections import RunConfig
from groupwise.config.yaml_lines import KeyPath

SINGLE: Mapping[KeyPath, str] = {
    ("algorithm",): "algorithms",
    ("prompts",): "prompts",
    ("evaluation", "source"): "prompts",
    ("policy",): "policies",
    ("sampler",): "samplers",
}
"""By path of a section, the kind of plugin that it names."""
LISTED: Mapping[str, str] = {
    "rewards": "rewards",
    "watch": "rewards",
    "callbacks": "callbacks",
    "reports": "reports",
}
"""By key of a list, the kind of plugin that each of its sections names."""


def kind_at(path: KeyPath) -> str | None:
    """The kind of plugin that the section at this path names; None if it names none."""
    if len(path) == 3 and path[0] in LISTS:
        return KINDS.get(str(path[2]))
    of_list = LISTED.get(str(path[0])) if len(path) == 2 else None
    return of_list or SINGLE.get(path)


def plugin_sections(config: RunConfig) -> Iterator[tuple[str, KeyPath, PluginSection]]:
    """Kind, path and section of every plugin that the configuration names, light ones first."""
    for key, kind in LISTED.items():
        for number, section in enumerate(getattr(config, key)):
            yield kind, (key, number), section
    yield "prompts", ("prompts",), config.prompts
    if config.evaluation.source is not None:
        yield "prompts", ("evaluation", "source"), config.evaluation.source
    for key in ("algorithm", "policy", "sampler"):
        for learner in config.learners.values():
            named = getattr(learner, key)
            if named is not None:
                yield KINDS[key], (*learner.path, key), named
