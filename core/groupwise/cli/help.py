"""Help: how `--help` shows the commands and their options."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

F = TypeVar("F", bound=Callable[..., Any])

PANELS: Mapping[str, str] = {
    "init": "Start a run",
    "check": "Start a run",
    "train": "Start a run",
    "resume": "Start a run",
    "report": "Use a run",
    "eval": "Use a run",
    "sample": "Use a run",
    "plugins": "See what is installed",
}
"""The panel of each command in `--help`, in the order in which users need them."""


def _without_values(parameters: list[Any]) -> list[Any]:
    """The parameters; flags show no type, which would look like a required value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command whose help shows `--resume`, and not `--resume <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_values(super().get_params(ctx))


class Commands(TyperGroup):
    """All commands, in panels."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_values(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        names, order = super().list_commands(ctx), list(PANELS)
        return sorted(names, key=lambda name: order.index(name) if name in order else len(order))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None and cmd_name in PANELS:
            command.rich_help_panel = PANELS[cmd_name]
        return command


class App(typer.Typer):
    """A Typer application whose commands are `Command`s, unless `cls` says otherwise."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=Commands, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        decorator: Callable[[F], F] = super().command(name, **{"cls": Command, **settings})
        return decorator
