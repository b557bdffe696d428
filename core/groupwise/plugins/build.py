"""build: from a plugin's target and its options to the object that a run uses."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from groupwise.config.mistakes import described, explain, unknown_key
from groupwise.config.plugin_sections import kind_at
from groupwise.errors import UserError
from groupwise.plugins.secret_options import resolved
from groupwise.plugins.targets import arguments, folders, has_config
from groupwise.registry import extend_module_path
from groupwise.section import KeyPath

if TYPE_CHECKING:
    from groupwise.config.load import LoadedConfig


def build(
    loaded: "LoadedConfig",
    section_path: KeyPath,
    target: Any,
    name: str,
    options: Mapping[str, Any],
    *beside: Any,
) -> Any:
    """The object that a section of the configuration names.

    A class with a nested `Config` is called with a `Config`, another class with the options as
    arguments. For a reward or a report that is a function the options are bound; any other function
    is called with them. A target that is an object already is returned.

    beside: further arguments, such as the policy of a sampler.
    """
    options = resolved(loaded, section_path, target, options)
    config = _checked(loaded, section_path, target, name, options)
    if _is_called_itself(section_path, target):
        return partial(target, **options) if options else target
    if not isinstance(target, type) and not inspect.isroutine(target):
        return target
    try:
        return target(config, *beside) if config is not None else target(*beside, **options)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(loaded.origin.message(section_path, str(error))) from error


def check_options(
    loaded: "LoadedConfig",
    section_path: KeyPath,
    target: Any,
    name: str,
    options: Mapping[str, Any],
) -> Any:
    """The target's `Config` of these options, None if it has no `Config`; builds nothing.

    Raises UserError for options that the target does not take, and for secrets that are missing.
    """
    options = resolved(loaded, section_path, target, options)
    return _checked(loaded, section_path, target, name, options)


def _checked(
    loaded: "LoadedConfig",
    section_path: KeyPath,
    target: Any,
    name: str,
    options: Mapping[str, Any],
) -> Any:
    """The target's `Config` of these options, with their secrets; None if it has no `Config`."""
    is_class = isinstance(target, type)
    if is_class and has_config(target):
        return validate(loaded, section_path, target, options)
    if is_class or _is_called_itself(section_path, target) or inspect.isroutine(target):
        whole = is_class or kind_at(section_path) != "rewards"
        _check_arguments(loaded, section_path, target, options, whole=whole)
    elif options:
        problem = f"{name!r} is an object already and takes no options, found {described(options)}"
        raise UserError(loaded.origin.message(section_path, problem))
    return None


def _is_called_itself(section_path: KeyPath, target: Any) -> bool:
    """Whether the target is a reward or report that is a function, rather than a class to build."""
    is_object = callable(target) and not isinstance(target, type)
    return is_object and kind_at(section_path) in ("rewards", "reports")


def validate(
    loaded: "LoadedConfig", section_path: KeyPath, target: Any, options: Mapping[str, Any]
) -> Any:
    """The target's `Config` of these options; raises UserError with lines and suggestions."""
    config: type[BaseModel] = target.Config
    extend_module_path(Path.cwd(), *folders(loaded))  # options, too, may name a module
    context = {"folder": loaded.folder, "begun_in": loaded.begun_in}
    try:
        return config.model_validate(dict(options), context=context)
    except ValidationError as error:
        known = _section_names(loaded, section_path)
        # Not `from error`: the traceback would show the input with its secrets.
        raise explain(error, config, loaded.origin, section_path, known) from None


def _section_names(loaded: "LoadedConfig", section_path: KeyPath) -> list[str]:
    """The section's own keys, which a misspelt option may have meant."""
    section: Any = loaded.config
    for part in section_path:
        section = section[part] if isinstance(part, int) else getattr(section, part, None)
    return list(type(section).model_fields) if isinstance(section, BaseModel) else []


def _check_arguments(
    loaded: "LoadedConfig",
    section_path: KeyPath,
    target: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    whole: bool,
) -> None:
    """Raise UserError unless the options fit the signature.

    whole: the options are all arguments. Those of a reward are not: its `**columns` are columns of
    the dataset, so an option must be a parameter by name.
    """
    try:
        named = arguments(kind_at(section_path), target)
        parameters = inspect.signature(target).parameters.values()
    except ValueError:  # some built-in types have no signature
        return
    known = [p.name for p in named]
    takes_any = whole and any(p.kind is p.VAR_KEYWORD for p in parameters)
    missing = [p.name for p in named if whole and p.default is p.empty and p.name not in options]
    suggested = known + _section_names(loaded, section_path)
    problems = [
        loaded.origin.message((*section_path, key), unknown_key(key, suggested))
        for key in options
        if key not in known and not takes_any
    ] + [
        loaded.origin.message((*section_path, key), "missing, it has no default") for key in missing
    ]
    if problems:
        raise UserError("\n".join(problems))
