"""Plugin sections: which sections of a configuration name plugins, and of which kind."""

from collections.abc import Iterator, Mapping
from typing import Any

from groupwise.config.learners import PLAYERS
from groupwise.config.sections import RunConfig
from groupwise.kinds import KINDS, LEARNER_SECTIONS
from groupwise.section import KeyPath, PluginSection

_SECTIONS = [(section, kind.name) for kind in KINDS.values() for section in kind.sections]
SINGLE: Mapping[KeyPath, str] = {
    tuple(section.split(".")): kind for section, kind in _SECTIONS if not section.endswith("[]")
}
"""By path of a section, the kind of plugin that it names."""
LISTED: Mapping[str, str] = {
    section.removesuffix("[]"): kind for section, kind in _SECTIONS if section.endswith("[]")
}
"""By key of a list, the kind of plugin that each of its sections names."""


def kind_at(path: KeyPath) -> str | None:
    """The kind of plugin that the section at this path names; None if it names none."""
    if len(path) == 3 and path[0] == PLAYERS:
        return LEARNER_SECTIONS.get(str(path[2]))
    of_list = LISTED.get(str(path[0])) if len(path) == 2 else None
    return of_list or SINGLE.get(path)


def plugin_sections(config: RunConfig) -> Iterator[tuple[str, KeyPath, PluginSection]]:
    """Kind, path and section of every plugin that the configuration names.

    Those of learners are last, since policies and samplers take longest to import.
    """
    for key, kind in LISTED.items():
        for number, section in enumerate(getattr(config, key)):
            yield kind, (key, number), section
    for path, kind in SINGLE.items():
        if path[0] in LEARNER_SECTIONS:
            continue
        own: Any = config
        for part in path:
            own = getattr(own, str(part))
        if own is not None:
            yield kind, path, own
    for key, kind in sorted(LEARNER_SECTIONS.items()):
        for learner in config.learners.values():
            named = getattr(learner, key)
            if named is not None:
                yield kind, (*learner.path, key), named
