"""Making: build the part of a run that a section of the configuration names."""

from typing import Any

from groupwise.config.load import LoadedConfig
from groupwise.config.objects import Objects
from groupwise.errors import UserError
from groupwise.kinds import KINDS
from groupwise.plugins.build import build
from groupwise.plugins.targets import load_target
from groupwise.scoring.forks import ending_forks
from groupwise.section import KeyPath, PluginSection


def make_part(
    loaded: LoadedConfig,
    objects: Objects,
    kind: str,
    path: KeyPath,
    section: PluginSection,
    *beside: Any,
) -> Any:
    """The object that a section names, built with its options; beside: further arguments."""
    with ending_forks():
        if path not in objects:
            target = load_target(loaded, path)
            part = build(loaded, path, target, *beside)
        # An object with options, as `{"name": object, "size": 3}`, or a class of samplers.
        elif section.options or beside:
            part = build(loaded, path, objects[path], *beside)
        else:
            part = objects[path]
    expected = KINDS[kind].expected
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
    return part
