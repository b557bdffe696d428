"""Option: an option of another framework, and what becomes of it here."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from groupwise_commands.porting.port import Port

Put = Callable[[Port], None]
"""Writes what an option becomes; reads theirs by `port.get`, whose UnreadError leaves it to do."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A row of a framework's table: one option, or several that go together.

    here: our key or keys, in Markdown, for the page; "" where nothing has to be set. note: what
    differs, or why there is no counterpart, in Markdown. default: theirs. kind: the types that a
    value may have; any if empty. always: whether it is written if their file does not state it,
    because defaults differ. lost: whether a value other than the default has no counterpart.
    A name that ends in ".*" stands for all below it.
    """

    names: tuple[str, ...]
    here: str
    note: str = ""
    default: Any = None
    kind: tuple[type, ...] = ()
    put: Put | None = None
    always: bool = False
    lost: bool = False


@dataclass(frozen=True, kw_only=True)
class Group:
    """A part of a framework's table under a title of its own."""

    title: str
    options: tuple[Option, ...] = field(repr=False)


def same(name: str, key: str, default: Any, note: str = "", *, always: bool = False) -> Option:
    """One that is called `key` here, with the same meaning; unset (None) is not written."""

    def put(port: Port) -> None:
        if port.get(name) is not None:
            port.write(key, port.get(name))

    return Option(
        names=(name,),
        here=f"`{key}`",
        note=note,
        default=default,
        kind=kind_of(default),
        put=put,
        always=always,
    )


def changed(
    name: str,
    here: str,
    put: Put,
    default: Any = None,
    note: str = "",
    *,
    kind: tuple[type, ...] | None = None,
    always: bool = False,
) -> Option:
    """One that `put` translates."""
    kinds = kind_of(default) if kind is None else kind
    return Option(
        names=(name,), here=here, note=note, default=default, kind=kinds, put=put, always=always
    )


def absent(*names: str, note: str, default: Any = None) -> Option:
    """Without a counterpart: a value other than the default is named."""
    return Option(names=names, here="none", note=note, default=default, lost=True)


def settled(*names: str, here: str = "", note: str = "", default: Any = None) -> Option:
    """Nothing has to be set: it follows from another option, or is done without one."""
    return Option(names=names, here=here, note=note, default=default)


def kind_of(default: Any) -> tuple[type, ...]:
    """The types of values of an option by its default; () if that says nothing."""
    if isinstance(default, bool):
        return (bool,)
    if isinstance(default, int | float):
        return (int, float)
    return (str,) if isinstance(default, str) else ()
