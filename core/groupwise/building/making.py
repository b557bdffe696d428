"""Making: build the part of a run that a section of the configuration names."""

from typing import Any

from groupwise.kinds import KINDS, exported
from groupwise.kit.errors import UserError
from groupwise.plugins import overrides
from groupwise.plugins.plugin import Plugin
from groupwise.plugins.resolved import ResolvedConfig
from groupwise.scoring.forks import ending_forks


def make_source(loaded: ResolvedConfig) -> Any:
    """The run's source of prompts; a mixture with its sources."""
    section, plugins = loaded.config.prompts, loaded.plugins
    if not section.sources:
        return make_part(plugins["prompts",])
    made = {
        x.title: make_part(plugins["prompts", "sources", n]) for n, x in enumerate(section.sources)
    }
    shares = {x.title: x.share for x in section.sources}
    return make_part(plugins["prompts",], made, shares, section.label_column)


def make_part(plugin: Plugin, *beside: Any) -> Any:
    """The object that the plugin builds, which must be one of its kind.

    beside: further arguments.
    """
    with ending_forks():
        part = plugin.build(*beside)
    expected = KINDS[plugin.kind].expected
    if expected is None:
        return part
    if isinstance(part, type):
        problem = (
            f"expected {expected.words}, found the class {part.__name__} itself: pass an instance"
        )
        raise UserError(plugin.message(problem))
    if not expected.fits(part):
        raise UserError(plugin.message(f"expected {expected.words}, found {type(part).__name__}"))
    if expected.base and (overridden := overrides.problem_of(part, exported(expected.base))):
        raise UserError(plugin.message(overridden))
    return part
