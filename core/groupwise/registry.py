"""Discovery of plugins: entry points through pluggy, registries of lazy targets, clear errors."""

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import (
    EntryPoint,
    PackageNotFoundError,
    distribution,
    entry_points,
    requires,
)
from pathlib import Path
from typing import Any

import pluggy
from packaging.requirements import Requirement

from groupwise import hookspecs
from groupwise.kinds import KINDS
from groupwise.kit.errors import UserError, did_you_mean, place_of
from groupwise.kit.options import StandsFor

SWITCHED_OFF = "GROUPWISE_WITHOUT"
"""An environment variable: comma-separated names of plugins not to load."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A registered name: its target, the plugin that registered it, the extra that it needs."""

    kind: str
    name: str
    target: str
    extra: str | None
    plugin: str
    distribution: str


@dataclass
class Registry:
    """All registered names.

    failures: plugins that could not be loaded, with the reason. switched_off: plugins that were not
    loaded because GROUPWISE_WITHOUT names them. misnamed: names in GROUPWISE_WITHOUT that are not
    installed, with the closest plugin.
    """

    entries: list[Entry] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    switched_off: list[str] = field(default_factory=list)
    misnamed: dict[str, str] = field(default_factory=dict)

    def named(self, kind: str, name: str) -> list[Entry]:
        """The entries that match `name`; for a name that two plugins register, `plugin/name` or
        `distribution/name`, which stays the same where a part moves to another plugin."""
        entries = [entry for entry in self.entries if entry.kind == kind]
        owner, _, rest = name.rpartition("/")
        return [entry for entry in entries if entry.name == name] or [
            entry
            for entry in entries
            if entry.name == rest and owner in (entry.plugin, entry.distribution)
        ]

    def of_name(self, name: str) -> list[Entry]:
        """The entries of any kind that a name may mean. Raises UserError where there are none."""
        entries = [entry for kind in KINDS for entry in self.named(kind, name)]
        if not entries:
            known = sorted({entry.name for entry in self.entries})
            raise UserError(
                f"no plugin registers {name!r}{did_you_mean(name, known)}; `groupwise plugins` "
                f"lists all names{self.may_bring}"
            )
        return entries

    def stands_for(self, value: Any) -> StandsFor | None:
        """What an object stands for by its class, or by one that this inherits from; else None."""
        for kind in type(value).__mro__:
            entries = self.named("objects", f"{kind.__module__}.{kind.__qualname__}")
            if entries:
                stands: StandsFor = target_of(entries[0])
                return stands
        return None

    def load(self, kind: str, name: str, beside: Sequence[Path] = ()) -> Any:
        """The target registered as `name`, or the attribute that "module:attribute" names.

        beside: further folders to search for modules, after the installed packages and the current
            folder.
        Raises UserError for unknown and doubly registered names, broken targets and missing extras.
        """
        if ":" in name:
            extend_module_path(Path.cwd(), *beside)
            return import_target(
                name, f"{KINDS[kind].singular} {name!r}", folders=(Path.cwd(), *beside)
            )
        entries = self.named(kind, name)
        if not entries:
            raise UserError(self._unknown(kind, name))
        if len(entries) > 1:
            both = " and ".join(f"{entry.plugin!r} ({entry.target})" for entry in entries)
            choices = " or ".join(repr(f"{entry.plugin}/{name}") for entry in entries)
            raise UserError(
                f"{KINDS[kind].singular} {name!r} is registered twice: by plugins {both}; "
                f"name one of them as {choices}"
            )
        return target_of(entries[0])

    def _unknown(self, kind: str, name: str) -> str:
        entries = [entry for entry in self.entries if entry.kind == kind]
        known = sorted({entry.name for entry in entries})
        plugin, _, rest = name.partition("/")
        # A model's hub name has a slash, too, so suggest only where one half is right.
        elsewhere = [f"{e.plugin}/{rest}" for e in entries if e.name == rest]
        full = elsewhere or [f"{e.plugin}/{e.name}" for e in entries if e.plugin == plugin]
        hint = did_you_mean(name, full if rest else known)
        if elsewhere and not hint:
            hint = f", did you mean {elsewhere[0]!r}?"
        if kind == "rewards" and not hint and ("/" in name or Path(name).exists()):
            return (
                f"{name!r} is no reward's name; for a model that scores completions, name a reward "
                f"that calls it, with the model as its option: {{name: REWARD, model: {name}}}. "
                f"docs/rewards.md, Reward models, lists such rewards"
            )
        return (
            f"unknown {KINDS[kind].singular} {name!r}{hint}; "
            f"registered are {', '.join(known) or 'none'}{self.may_bring}"
        )

    @property
    def may_bring(self) -> str:
        """A line for each plugin that was not loaded, for messages about a name that is missing."""
        broken = [
            f"\n  plugin {plugin!r} may register it, but could not be loaded: {reason}"
            for plugin, reason in self.failures.items()
        ]
        absent = [
            f"\n  plugin {plugin!r} may register it, but is switched off by {SWITCHED_OFF}"
            for plugin in self.switched_off
        ]
        return "".join([*broken, *absent])


def target_of(entry: Entry) -> Any:
    """What a registered name stands for. Raises UserError where it, or its extra, is missing."""
    extra = entry.extra and f"{entry.distribution}[{entry.extra}]"
    return import_target(entry.target, f"{KINDS[entry.kind].singular} {entry.name!r}", extra)


def extend_module_path(*folders: Path) -> None:
    """Add folders to the module search path, for modules that a configuration names."""
    for folder in map(Path.resolve, folders):
        # At the end: a user's `math.py` must not shadow an installed module.
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def import_target(
    target: str, what: str, extra: str | None = None, *, folders: Sequence[Path] = ()
) -> Any:
    """The attribute that "module:attribute" names.

    what: stands for in messages; extra: that may bring a module it imports, if one is missing;
    folders: where modules are looked for besides the installed packages.
    Raises UserError for a module or an attribute that is missing, and for what an import raises.
    """
    module, _, attribute = target.partition(":")
    try:
        value: Any = importlib.import_module(module)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if extra is not None and missing != module.partition(".")[0]:
            raise UserError(f"{what} needs an extra: pip install {extra!r} ({error})") from error
        if missing == module.partition(".")[0] and folders:
            raise UserError(f"{what}: {_nowhere(module, folders)}") from error
        raise UserError(f"{what}: cannot import {module!r}: {error}{_place(error)}") from error
    except Exception as error:  # third-party code may raise anything at import
        reason = f"{type(error).__name__}: {error}{_place(error)}"
        raise UserError(f"{what}: importing {module!r} raised {reason}") from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = [name for name in vars(value) if not name.startswith("_")]
            raise UserError(f"{what}: {module!r} has no {part!r}{did_you_mean(part, names)}")
        value = getattr(value, part)
    return value


def _nowhere(module: str, folders: Sequence[Path]) -> str:
    """Where a module was looked for, and the file with the nearest name there."""
    places = [*dict.fromkeys(folder.resolve() for folder in folders)]
    names = [path.stem for folder in places for path in folder.glob("*.py")]
    places_in_words = " nor in ".join(map(str, places))
    return (
        f"there is no module {module!r}{did_you_mean(module, names)}, neither installed nor in "
        f"{places_in_words}"
    )


def _place(error: BaseException) -> str:
    place = place_of(error)
    return f"\n  at {place}" if place else ""


def discover(points: Iterator[EntryPoint] | None = None) -> Registry:
    """Load every entry point of the group `groupwise`; one that fails never breaks the others."""
    registry = Registry()
    without = {name.strip() for name in os.environ.get(SWITCHED_OFF, "").split(",")} - {""}
    every = list(points if points is not None else entry_points(group=hookspecs.PROJECT))
    names = [point.name for point in every]
    registry.misnamed = {name: did_you_mean(name, names) for name in sorted(without - {*names})}
    for number, point in enumerate(every):
        if point.name in without:
            registry.switched_off.append(point.name)
            continue
        # Third-party code may raise anything at import: note it and go on with the others.
        try:
            if point.name in names[:number]:
                raise ValueError(f"another plugin is named {point.name!r}, too")
            registry.entries += _entries(point)
        except (Exception, SystemExit) as error:
            registry.failures[point.name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return registry


def _entries(point: EntryPoint) -> list[Entry]:
    """What one plugin registers."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)  # of its own, to tell its names from others'
    manager.add_hookspecs(hookspecs)
    manager.register(point.load(), name=point.name)
    manager.check_pending()
    source = point.dist.name if point.dist else "?"
    entries: list[Entry] = []

    def register(kind: str, name: str, target: str, *, extra: str | None = None) -> None:
        if ":" in name or not target.partition(":")[2]:
            raise ValueError(f"register({name!r}, {target!r}): target must be 'module:attribute'")
        entries.append(
            Entry(
                kind=kind,
                name=name,
                target=target,
                extra=extra,
                plugin=point.name,
                distribution=source,
            )
        )

    for kind in KINDS:
        getattr(manager.hook, f"register_{kind}")(register=partial(register, kind))
    return entries


@cache
def installed() -> Registry:
    """The registry of this environment, discovered once per process."""
    return discover()


def missing_requirements(entry: Entry) -> list[str]:
    """The requirements of the entry's extra that are not installed, from metadata alone."""
    if entry.extra is None or not _is_installed(entry.distribution):
        return []
    of_extra = [
        requirement.name
        for requirement in map(Requirement, requires(entry.distribution) or [])
        if (marker := requirement.marker)
        and marker.evaluate({"extra": entry.extra})
        and not marker.evaluate({"extra": ""})
    ]
    return [name for name in of_extra if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except (PackageNotFoundError, ValueError):  # ValueError: an empty name
        return False
    return True
