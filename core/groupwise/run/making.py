"""Making: what a section of the configuration names, built of its options."""

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


def make_part(
    loaded: LoadedConfig,
    objects: Objects,
    kind: str,
    path: KeyPath,
    section: PluginSection,
    *beside: Any,
) -> Any:
    """What a section names, built of its options; beside: what it is built with, too."""
    if path in objects:
        made = objects[path]
        # Options beside the object, as `{"name": object, "size": 3}`; a class of samplers.
        if section.options or beside:
            made = build(loaded, path, made, section.name, section.options, *beside)
    else:
        target = load_target(loaded, kind, path, section.name)
        made = build(loaded, path, target, section.name, section.options, *beside)
    expected, fits = _EXPECTED[kind]
    if isinstance(made, type):
        problem = f"expected {expected}, found the class {made.__name__} itself: give an instance"
        raise UserError(loaded.origin.message(path, problem))
    if not fits(made):
        problem = f"expected {expected}, found {type(made).__name__}"
        raise UserError(loaded.origin.message(path, problem))
    return made


def _is_source(made: Any) -> bool:
    return hasattr(made, "__len__") and hasattr(made, "__getitem__")


_EXPECTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "policies": ("a groupwise.Policy", lambda made: isinstance(made, Policy)),
    "samplers": ("a groupwise.Sampler", lambda made: isinstance(made, Sampler)),
    "algorithms": ("a groupwise.Algorithm", lambda made: isinstance(made, Algorithm)),
    "callbacks": ("a groupwise.Callback", lambda made: isinstance(made, Callback)),
    "rewards": ("something to call", callable),
    "prompts": ("rows, with len() and [index]", _is_source),
}
"""By kind of plugin: what one is, in words and as a question."""
