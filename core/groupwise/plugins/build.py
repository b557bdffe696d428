"""build: from a plugin's target and its options to the object that a run uses."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from groupwise.config.mistakes import described, explain, unknown_key
from groupwise.config.plugin_sections import kind_at, section_at
from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath
from groupwise.plugins.secret_options import resolved
from groupwise.plugins.targets import arguments, folders, has_config
from groupwise.registry import extend_module_path

if TYPE_CHECKING:
    from groupwise.config.load import LoadedConfig


def build(loaded: "LoadedConfig", path: KeyPath, target: Any, *beside: Any) -> Any:
    """The object that the section at a path names, by its target and with its options.

    A class with a nested `Config` is called with a `Config`, another class with the options as
    arguments. For a reward or a report that is a function the options are bound; any other function
    is called with them. A target that is an object already is returned.

    beside: further arguments, such as the policy of a sampler.
    """
    options = resolved(loaded, path, target)
    config = _checked(loaded, path, target, options)
    if _is_called_itself(path, target):
        return partial(target, **options) if options else target
    if not isinstance(target, type) and not inspect.isroutine(target):
        return target
    try:
        return target(config, *beside) if config is not None else target(*beside, **options)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(loaded.origin.message(path, str(error))) from error


def check_options(loaded: "LoadedConfig", path: KeyPath, target: Any) -> Any:
    """The target's `Config` of its section's options, None if it has no `Config`; builds nothing.

    Raises UserError for options that the target does not take, and for secrets that are missing.
    """
    return _checked(loaded, path, target, resolved(loaded, path, target))


def _checked(loaded: "LoadedConfig", path: KeyPath, target: Any, options: Mapping[str, Any]) -> Any:
    """The target's `Config` of these options, with their secrets; None if it has no `Config`."""
    is_class = isinstance(target, type)
    if is_class and has_config(target):
        return _validated(loaded, path, target, options)
    if is_class or _is_called_itself(path, target) or inspect.isroutine(target):
        _check_arguments(loaded, path, target, options)
    elif options:
        name = section_at(loaded.config, path).name
        problem = f"{name!r} is an object already and takes no options, found {described(options)}"
        raise UserError(loaded.origin.message(path, problem))
    return None


def _is_called_itself(path: KeyPath, target: Any) -> bool:
    """Whether the target is a reward or report that is a function, rather than a class to build."""
    is_object = callable(target) and not isinstance(target, type)
    return is_object and kind_at(path) in ("rewards", "reports")


def _validated(
    loaded: "LoadedConfig", path: KeyPath, target: Any, options: Mapping[str, Any]
) -> Any:
    """The target's `Config` of these options; raises UserError with lines and suggestions."""
    extend_module_path(Path.cwd(), *folders(loaded))  # options, too, may name a module
    context = {
        "folder": loaded.folder,
        "begun_in": loaded.begun_in,
        "ahead": bool(loaded.config.train.ahead),
    }
    try:
        return target.Config.model_validate(dict(options), context=context)
    except ValidationError as error:
        # Not `from error`: the traceback would show the input with its secrets.
        raise explain(
            error,
            target.Config,
            options,
            loaded.origin,
            prefix=path,
            extra_names=_own_keys(loaded, path),
            whole=type(loaded.config),
        ) from None


def _own_keys(loaded: "LoadedConfig", path: KeyPath) -> list[str]:
    """The section's own keys, which a misspelt option may have meant."""
    return [*type(section_at(loaded.config, path)).model_fields]


def _check_arguments(
    loaded: "LoadedConfig",
    path: KeyPath,
    target: Callable[..., Any],
    options: Mapping[str, Any],
) -> None:
    """Raise UserError unless the options fit the signature."""
    try:
        named = arguments(kind_at(path), target)
        parameters = inspect.signature(target).parameters.values()
    except ValueError:  # some built-in types have no signature
        return
    # The options of a reward are not all of its arguments: others, and its `**columns`, are columns
    # of the dataset.
    is_whole, whole = isinstance(target, type) or kind_at(path) != "rewards", type(loaded.config)
    known = [p.name for p in named]
    takes_any = is_whole and any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [] if takes_any else [key for key in options if key not in known]
    missing = [p.name for p in named if is_whole and p.default is p.empty and p.name not in options]
    problems = {key: unknown_key(key, known + _own_keys(loaded, path), whole) for key in unknown}
    problems |= dict.fromkeys(missing, "missing, it has no default")
    if problems:
        messages = [loaded.origin.message((*path, key), text) for key, text in problems.items()]
        raise UserError("\n".join(messages))
