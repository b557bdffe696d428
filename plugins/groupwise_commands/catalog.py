"""Catalog: all registered names by kind, a line each."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from groupwise import registry as plugins
from groupwise.kinds import KINDS, Kind
from groupwise.registry import SWITCHED_OFF, Entry, Registry
from groupwise_commands.docstrings import line
from groupwise_commands.layout import heading, paragraph

MORE = "`groupwise plugins NAME` shows the options of one."


def catalog(registry: Registry, width: int | None) -> Text:
    """Every name with what it does; then those that are not installed, and problems.

    width: of the terminal, None for lines of any length.
    """
    text = Text()
    for kind in KINDS.values():
        entries = [entry for entry in registry.entries if entry.kind == kind.name]
        if entries:
            text.append_text(heading(kind.name, _purpose(kind)))
            text.append_text(_of_kind(sorted(entries, key=lambda entry: entry.name), width))
            text.append("\n")
    missing = _missing(registry)
    if missing:
        text.append_text(heading("not installed"))
        for command, names in missing.items():
            text.append(paragraph(f"{command}: {', '.join(names)}", width, indent=4, first="  "))
        text.append("\n")
    for problem in _problems(registry):
        text.append(paragraph(problem, width), style="red")
    if registry.switched_off:
        off = f"switched off by {SWITCHED_OFF}: {', '.join(registry.switched_off)}"
        text.append(paragraph(off, width))
    text.append(f"{MORE}\n")
    return text


def _purpose(kind: Kind) -> str:
    """What the kind is for, and the keys of a configuration that name one."""
    keys = ", ".join(f"{section.removesuffix('[]')}:" for section in kind.sections)
    return f"{kind.purpose} ({keys})" if keys else kind.purpose


def _of_kind(entries: list[Entry], width: int | None) -> Text:
    text, column = Text(), max(len(entry.name) for entry in entries)
    for entry in entries:
        absent = install(entry)
        what = f"(not installed) {line(entry.target)}" if absent else line(entry.target)
        first = f"  {entry.name:<{column}}  "
        shown = paragraph(what, width, indent=len(first), first=first)
        text.append(shown, style="dim" if absent else "")
    return text


def install(entry: Entry) -> str:
    """The command that installs what an entry lacks; "" if nothing is missing."""
    if not plugins.missing_requirements(entry):
        return ""
    return f"pip install '{entry.distribution}[{entry.extra}]'"


def _missing(registry: Registry) -> dict[str, list[str]]:
    """Names that are not installed, by the command that installs them."""
    names: dict[str, list[str]] = {}
    for entry in registry.entries:
        if command := install(entry):
            names.setdefault(command, []).append(entry.name)
    return {command: sorted(set(names[command])) for command in sorted(names)}


def duplicates(registry: Registry) -> list[dict[str, Any]]:
    """Names that several plugins have registered: an error in a configuration, unless it names one
    as `plugin/name`."""
    plugins_of: dict[tuple[str, str], list[str]] = {}
    for entry in registry.entries:
        plugins_of.setdefault((entry.kind, entry.name), []).append(entry.plugin)
    return [
        {"kind": kind, "name": name, "plugins": owners}
        for (kind, name), owners in plugins_of.items()
        if len(owners) > 1
    ]


def _problems(registry: Registry) -> Iterator[str]:
    for plugin, reason in registry.failures.items():
        yield f"plugin {plugin!r} could not be loaded: {reason}"
    for name, hint in registry.misnamed.items():
        yield f"{SWITCHED_OFF} names {name!r}, and no plugin is called so{hint}"
    for twice in duplicates(registry):
        both = [f"{plugin}/{twice['name']}" for plugin in twice["plugins"]]
        yield (
            f"{twice['name']!r} in {twice['kind']} is registered by several plugins; "
            f"name one of them as {' or '.join(both)}"
        )
