"""`groupwise plugins`: the installed plugins, or the options of one."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from groupwise.registry import Entry, Registry


def plugin_names(incomplete: str) -> list[str]:
    """What the shell suggests: registered names of any kind."""
    from groupwise.registry import installed

    return sorted({e.name for e in installed().entries if e.name.startswith(incomplete)})


Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME", help="show this one and its options", autocompletion=plugin_names
    ),
]


def plugins(
    name: Name = None,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON, for other programs")] = False,
) -> None:
    """List what plugins register, by kind; or show the options of one."""
    from groupwise.registry import installed

    registry = installed()
    entries = registry.entries if name is None else registry.of_name(name)
    if as_json:
        typer.echo(json.dumps(_record(registry, entries), indent=2))
        return
    from rich.console import Console

    # `paragraph` breaks lines to the terminal's width, and not at all in a file or a pipe.
    console = Console(highlight=False, markup=False, soft_wrap=True)
    width = console.width if console.is_terminal else None
    if name is None:
        from groupwise_commands.catalog import catalog

        console.print(catalog(registry, width), end="")
    else:
        from groupwise_commands.page import page

        console.print(page(entries, width), end="")


def _record(registry: "Registry", entries: "Sequence[Entry]") -> dict[str, Any]:
    from groupwise.registry import missing_requirements
    from groupwise_commands.catalog import duplicates
    from groupwise_commands.docstrings import WHEN, line, when

    keys = ("kind", "name", "target", "extra", "plugin", "distribution")
    return {
        "entries": [
            {key: getattr(entry, key) for key in keys}
            | {"line": line(entry.target), "when": when(entry.target).removeprefix(WHEN)}
            | {"missing": missing_requirements(entry)}
            for entry in entries
        ],
        "failures": dict(registry.failures),
        "switched_off": list(registry.switched_off),
        "duplicates": duplicates(registry),
    }
