"""Option: an option of another framework, and what becomes of it here; a table of them is YAML.

A framework's `table.yaml` has groups, each with a `title` and its `options`: `theirs` is a name, or
several; `same` the key here that gets the value, or `put` the function, as module.function of the
framework's package, that writes what it becomes. With neither nothing is written: the option
follows from another one, needs nothing, or is `lost`. Other keys are fields of `Option`, and those
of `_same`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from groupwise.config.yaml_lines import read
from groupwise_commands.porting.port import Port

Put = Callable[[Port], None]
"""Writes what an option becomes; reads theirs by `port.get`, whose UnreadError leaves it to do."""
KINDS: Mapping[str, type] = {each.__name__: each for each in (bool, int, float, str, list, dict)}


@dataclass(frozen=True, kw_only=True)
class Option:
    """A row of a framework's table: one option, or several that go together."""

    names: tuple[str, ...]
    here: str = ""
    """Our key or keys, in Markdown, for the page; "" where nothing has to be set."""
    note: str = ""
    """What differs, or why there is no counterpart, in Markdown."""
    default: Any = None
    """Theirs."""
    kind: tuple[type, ...] = ()
    """The types that a value may have; any if empty."""
    put: Put | None = None
    always: bool = False
    """Whether it is written if their file does not state it, because defaults differ."""
    lost: bool = False
    """Whether a value other than the default has no counterpart."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A part of a framework's table under a title of its own."""

    title: str
    options: tuple[Option, ...] = field(repr=False)


@cache
def table(package: str) -> tuple[Group, ...]:
    """The table of a framework's package, in the order in which options are applied."""
    return tuple(
        Group(title=each["title"], options=tuple(_option(row, package) for row in each["options"]))
        for each in data(package, "table")
    )


@cache
def data(package: str, name: str) -> Any:
    """What a YAML file beside the modules of a package says."""
    text = (files(package) / f"{name}.yaml").read_text("utf-8")
    return read(text, f"{package}, {name}.yaml")[0]


def _option(row: Mapping[str, Any], package: str) -> Option:
    theirs, default = row["theirs"], row.get("default")
    put: Put | None = None
    kind: tuple[type, ...] = ()
    here = "none" if "lost" in row else ""
    if "same" in row:
        put, here = _same(row), f"`{row['same']}`"
    elif "put" in row:
        module, _, function = row["put"].rpartition(".")
        put = getattr(import_module(f"{package}.{module}"), function)
    if put is not None:
        kind = tuple(KINDS[each] for each in row["kind"]) if "kind" in row else _kind(default)
    return Option(
        names=(theirs,) if isinstance(theirs, str) else tuple(theirs),
        here=row.get("here", here),
        note=row.get("note", ""),
        default=default,
        kind=kind,
        put=put,
        always=row.get("always", False),
        lost=row.get("lost", False),
    )


def _same(row: Mapping[str, Any]) -> Put:
    """Writes one that has a key here; None is not written, nor what `unless` lists.

    value: what is written, if not theirs; values: the same by theirs, with, `otherwise`, the one in
    place of those that are not there, and what these `lacks`. only: values of other options, by
    name, without which nothing is written. unset: the reason, where their file does not state it.
    """
    name, key, values = row["theirs"], row["same"], row.get("values")

    def put(port: Port) -> None:
        if any(port.get(other) != value for other, value in row.get("only", {}).items()):
            return
        theirs = port.get(name)
        ours = row.get("value", theirs) if values is None else values.get(theirs, row["otherwise"])
        if values is not None and theirs not in values:
            port.lose_value(name, row["lacks"])
        elif theirs is None or theirs in row.get("unless", ()):
            return
        port.write(key, ours, "" if port.states(name) else row.get("unset", ""))

    return put


def _kind(default: Any) -> tuple[type, ...]:
    """The types of values of an option by its default; () if that says nothing."""
    if isinstance(default, bool):
        return (bool,)
    if isinstance(default, int | float):
        return (int, float)
    return (str,) if isinstance(default, str) else ()
