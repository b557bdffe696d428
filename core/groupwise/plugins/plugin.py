"""Plugin: what a section of a configuration names: its target, its options, and what they build."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from groupwise import registry
from groupwise.config.mistakes import Origin, below, described, explain, unknown_key
from groupwise.config.sections import RunConfig
from groupwise.kit import secrets
from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath, PluginSection
from groupwise.plugins.targets import arguments, has_config


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """What the section at `path` names. It is imported, and its options are checked, when first
    asked for; both are kept."""

    kind: str
    path: KeyPath
    section: PluginSection = field(repr=False)
    origin: Origin = field(repr=False)
    context: Mapping[str, Any]
    """For the validation of options: folders of relative paths, and whether a run samples ahead."""
    passed: Any = None
    """The Python object that stands in place of the name; None if there is none."""
    passed_options: Mapping[str, Any] = field(default_factory=dict)
    """Python objects that stand in place of options."""

    @cached_property
    def target(self) -> Any:
        """What the name stands for, imported, or the object in its place.

        Raises UserError for a name that is unknown, or cannot be imported.
        """
        if self.passed is not None:
            return self.passed
        try:
            return registry.installed().load(self.kind, self.section.name, beside=self.folders)
        except UserError as error:
            raise UserError(self.message(str(error), "name")) from error

    @cached_property
    def settings(self) -> Any:
        """The target's `Config` of the options, with secrets; the attribute `config` of an object;
        None if there is neither.

        Raises UserError for options that the target does not take, with lines and suggestions, and
        for secrets that are missing.
        """
        if self.is_complete:
            return None if isinstance(self.passed, type) else getattr(self.passed, "config", None)
        target = self.target
        is_class = isinstance(target, type)
        if is_class and has_config(target):
            return self._validated(target.Config)
        if is_class or self._is_called or inspect.isroutine(target):
            self._check_arguments(target)
        elif self.options:
            problem = f"is an object already and takes no options, found {described(self.options)}"
            raise UserError(self.message(f"{self.section.name!r} {problem}"))
        return None

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """The options as the target gets them: secrets unwrapped, environment variables replaced,
        and objects in their places.

        Raises UserError for secrets that are missing.
        """
        problems = secrets.problems(self.concealed, self.path)
        if messages := [self.origin.message(path, problem) for path, problem in problems]:
            raise UserError("\n".join(messages))
        return {**secrets.revealed(self.section.options), **self.passed_options}

    @property
    def concealed(self) -> Mapping[str, Any]:
        """The options with those wrapped that the target's `Config` declares secret."""
        hints = [self.target.Config] if has_config(self.target) else []
        wrapped: Mapping[str, Any] = secrets.in_types(self.section.options, hints, below)
        return wrapped

    @property
    def part_type(self) -> Any:
        """The target; of an object that was passed in Python its class."""
        is_object = self.passed is not None and not isinstance(self.passed, type)
        return type(self.passed) if is_object else self.target

    @property
    def is_complete(self) -> bool:
        """Whether an object was passed that is used as it is, since it has no options."""
        if self.passed is None or self.section.options:
            return False
        is_maker = isinstance(self.passed, type) or inspect.isroutine(self.passed)
        return not (is_maker and self.kind == "samplers")

    def build(self, *beside: Any) -> Any:
        """The object that a run uses.

        A class with a nested `Config` is called with it, another class with the options as
        arguments. For a reward or a report that is a function the options are bound; any other
        function is called with them.

        beside: further arguments, such as the policy of a sampler.
        """
        target, settings = self.target, self.settings
        if self.is_complete:
            return target
        if self._is_called:
            return partial(target, **self.options) if self.options else target
        if not isinstance(target, type) and not inspect.isroutine(target):
            return target
        try:
            if settings is not None:
                return target(settings, *beside)
            return target(*beside, **self.options)
        except UserError:
            raise
        except ValueError as error:
            raise UserError(self.message(str(error))) from error

    def message(self, problem: str, *keys: str | int) -> str:
        """A problem of the section, or of a key in it, with its place in the configuration."""
        return self.origin.message((*self.path, *keys), problem)

    @property
    def folders(self) -> list[Path]:
        """Folders to search for modules, besides the current one."""
        named = (self.context["folder"], self.context["begun_in"])
        return [folder for folder in named if folder is not None]

    @property
    def _is_called(self) -> bool:
        """Whether it is a reward or a report that is a function, rather than a class to build."""
        is_function = callable(self.target) and not isinstance(self.target, type)
        return is_function and self.kind in ("rewards", "reports")

    @property
    def _own_keys(self) -> list[str]:
        """The section's own keys, which a misspelt option may have meant."""
        return [*type(self.section).model_fields]

    def _validated(self, config: Any) -> Any:
        registry.extend_module_path(Path.cwd(), *self.folders)  # options, too, may name a module
        try:
            return config.model_validate(dict(self.options), context=self.context)
        except ValidationError as error:
            # Not `from error`: the traceback would show the input with its secrets.
            raise explain(
                error,
                config,
                self.options,
                self.origin,
                prefix=self.path,
                extra_names=self._own_keys,
                whole=RunConfig,
            ) from None

    def _check_arguments(self, target: Callable[..., Any]) -> None:
        """Raise UserError unless the options fit the signature."""
        options = self.options
        try:
            named = arguments(self.kind, target)
            parameters = inspect.signature(target).parameters.values()
        except ValueError:  # some built-in types have no signature
            return
        # The options of a reward are not all of its arguments: others, and its `**columns`, are
        # columns of the dataset.
        is_whole = isinstance(target, type) or self.kind != "rewards"
        takes_any = is_whole and any(p.kind is p.VAR_KEYWORD for p in parameters)
        known = [p.name for p in named]
        unknown = [] if takes_any else [key for key in options if key not in known]
        required = [p.name for p in named if is_whole and p.default is p.empty]
        problems = {key: unknown_key(key, known + self._own_keys, RunConfig) for key in unknown}
        problems |= {name: "missing, it has no default" for name in required if name not in options}
        if problems:
            raise UserError("\n".join(self.message(text, key) for key, text in problems.items()))
