"""Making: build the part of a run that a section of the configuration names."""

from typing import Any

from groupwise.config.load import LoadedConfig
from groupwise.config.plugin_sections import kind_at, section_at
from groupwise.kinds import KINDS, exported
from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath
from groupwise.plugins import overrides
from groupwise.plugins.build import build
from groupwise.plugins.targets import load_target
from groupwise.scoring.forks import ending_forks


def make_source(loaded: LoadedConfig) -> Any:
    """The run's source of prompts; a mixture with its sources."""
    section, path = loaded.config.prompts, ("prompts", "sources")
    if not section.sources:
        return make_part(loaded, ("prompts",))
    sources = {x.title: make_part(loaded, (*path, n)) for n, x in enumerate(section.sources)}
    shares = {x.title: x.share for x in section.sources}
    return make_part(loaded, ("prompts",), sources, shares, section.label_column)


def make_part(loaded: LoadedConfig, path: KeyPath, *beside: Any) -> Any:
    """The object that the section at a path names, built with its options.

    beside: further arguments.
    """
    with ending_forks():
        if path not in loaded.objects:
            part = build(loaded, path, load_target(loaded, path), *beside)
        # An object with options, as `{"name": object, "size": 3}`, or a class of samplers.
        elif section_at(loaded.config, path).options or beside:
            part = build(loaded, path, loaded.objects[path], *beside)
        else:
            part = loaded.objects[path]
    expected = KINDS[str(kind_at(path))].expected
    if expected is None:
        return part
    if isinstance(part, type):
        problem = (
            f"expected {expected.words}, found the class {part.__name__} itself: pass an instance"
        )
        raise UserError(loaded.origin.message(path, problem))
    if not expected.fits(part):
        problem = f"expected {expected.words}, found {type(part).__name__}"
        raise UserError(loaded.origin.message(path, problem))
    if expected.base and (overridden := overrides.problem_of(part, exported(expected.base))):
        raise UserError(loaded.origin.message(path, overridden))
    return part
