"""build: from a plugin's target and its options to the object that a run uses."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from groupwise import secrets
from groupwise.config.kinds import kind_at, plugin_sections
from groupwise.config.mistakes import below, described, explain, unknown_key
from groupwise.config.yaml_lines import KeyPath
from groupwise.errors import UserError
from groupwise.plugins import registry as plugins

if TYPE_CHECKING:
    from groupwise.config.load import LoadedConfig


def load_target(loaded: "LoadedConfig", kind: str, path: KeyPath, name: str) -> Any:
    """Import the target of a registered name, or `module:attribute`; UserError names the line."""
    try:
        return plugins.installed().load(kind, name, beside=_folders(loaded))
    except UserError as error:
        raise UserError(loaded.origin.message((*path, "name"), str(error))) from error


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
    config = check_options(loaded, section_path, target, name, options)
    options = secrets.revealed(options)
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
    problems = [
        loaded.origin.message(path, problem)
        for path, problem in secrets.problems(concealed(target, options), section_path)
    ]
    if problems:
        raise UserError("\n".join(problems))
    options = secrets.revealed(options)
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


def concealed(target: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options with those wrapped whose type in the target's `Config` is a secret type."""
    hints = [target.Config] if has_config(target) else []
    hidden: Mapping[str, Any] = secrets.in_types(options, hints, below)
    return hidden


def with_secrets(loaded: "LoadedConfig", targets: Mapping[KeyPath, Any]) -> "LoadedConfig":
    """The configuration with all options wrapped that a plugin's `Config` declares secret.

    targets: by path of a section, the imported target of its name.
    """
    config = loaded.config
    for _, path, section in plugin_sections(config):
        options = section.options
        hidden = concealed(targets.get(path), options)
        if hidden is not options:
            config = _changed(config, path, hidden)
    return replace(loaded, config=config)


def _changed(section: Any, path: KeyPath, options: Mapping[str, Any]) -> Any:
    """A section, or a list of them, with other options where `path` leads."""
    if not path:
        return section.model_copy(update=options)
    key, rest = path[0], path[1:]
    if isinstance(section, list):
        return [_changed(x, rest, options) if i == key else x for i, x in enumerate(section)]
    return section.model_copy(
        update={str(key): _changed(getattr(section, str(key)), rest, options)}
    )


def _is_called_itself(section_path: KeyPath, target: Any) -> bool:
    """Whether the target is a reward or report that is a function, rather than a class to build."""
    is_object = callable(target) and not isinstance(target, type)
    return is_object and kind_at(section_path) in ("rewards", "reports")


def has_config(target: Any) -> bool:
    """Whether a target is built from a nested pydantic `Config`."""
    config = getattr(target, "Config", None)
    return isinstance(config, type) and issubclass(config, BaseModel)


def validate(
    loaded: "LoadedConfig", section_path: KeyPath, target: Any, options: Mapping[str, Any]
) -> Any:
    """The target's `Config` of these options; raises UserError with lines and suggestions."""
    config: type[BaseModel] = target.Config
    plugins.extend_module_path(Path.cwd(), *_folders(loaded))  # options, too, may name a module
    context = {"folder": loaded.folder, "begun_in": loaded.begun_in}
    try:
        return config.model_validate(dict(options), context=context)
    except ValidationError as error:
        known = _section_names(loaded, section_path)
        # Not `from error`: the traceback would show the input with its secrets.
        raise explain(error, config, loaded.origin, section_path, known) from None


def _folders(loaded: "LoadedConfig") -> list[Path]:
    """Folders to search for modules, besides the current one."""
    return [folder for folder in (loaded.folder, loaded.begun_in) if folder is not None]


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


def arguments(kind: str | None, target: Callable[..., Any]) -> list[inspect.Parameter]:
    """The arguments that a configuration may give to a target without a `Config`.

    Raises ValueError for built-in types that have no signature.
    """
    parameters = inspect.signature(target).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if kind == "samplers" or (kind == "reports" and not isinstance(target, type)):
        return named[1:]  # the policy, or the folder, which the core passes
    if kind == "rewards" and not isinstance(target, type):
        return [p for p in named if p.name not in _reward_arguments()]
    return named


def _reward_arguments() -> tuple[str, ...]:
    from groupwise.rewards import OWN_ARGUMENTS

    return OWN_ARGUMENTS
