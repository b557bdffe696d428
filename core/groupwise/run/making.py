"""Making: build the part of a run that a section of the configuration names."""

from collections.abc import Callable, Mapping
from typing import Any

from groupwise.algorithm import Algorithm
from groupwise.callback import Callback
from groupwise.config.load import LoadedConfig
from groupwise.config.objects import Objects
from groupwise.config.section import PluginSection
from groupwise.config.yaml_lines import KeyPath
from groupwise.errors import UserError
from groupwise.plugins.build import build, load_target
from groupwise.policy import Policy
from groupwise.sampler import Sampler
from groupwise.scoring.forks import ending_forks


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
            target = load_target(loaded, kind, path, section.name)
            part = build(loaded, path, target, section.name, section.options, *beside)
        # An object with options, as `{"name": object, "size": 3}`, or a class of samplers.
        elif section.options or beside:
            part = build(loaded, path, objects[path], section.name, section.options, *beside)
        else:
            part = objects[path]
    expected, fits = _EXPECTED[kind]
    if isinstance(part, type):
        problem = f"expected {expected}, found the class {part.__name__} itself: pass an instance"
        raise UserError(loaded.origin.message(path, problem))
    if not fits(part):
        problem = f"expected {expected}, found {type(part).__name__}"
        raise UserError(loaded.origin.message(path, problem))
    return part


def _is_source(part: Any) -> bool:
    return hasattr(part, "__len__") and hasattr(part, "__getitem__")


_EXPECTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "policies": ("a groupwise.Policy", lambda part: isinstance(part, Policy)),
    "samplers": ("a groupwise.Sampler", lambda part: isinstance(part, Sampler)),
    "algorithms": ("a groupwise.Algorithm", lambda part: isinstance(part, Algorithm)),
    "callbacks": ("a groupwise.Callback", lambda part: isinstance(part, Callback)),
    "rewards": ("a callable", callable),
    "reports": ("a callable", callable),
    "prompts": ("rows, with len() and [index]", _is_source),
}
"""By kind of plugin: the expected type, for messages and as a test."""
