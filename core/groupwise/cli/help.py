"""Help: how `--help` shows the commands and their options."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from groupwise.cli.extensions import extensions

F = TypeVar("F", bound=Callable[..., Any])

PANELS: Mapping[str, str] = {
    "init": "Start a run",
    "check": "Start a run",
    "train": "Start a run",
    "resume": "Start a run",
    "eval": "Use a run",
    "sample": "Use a run",
    "plugins": "See what is installed",
}
"""The panel of each command in `--help`, in the order in which users need them."""
EXTENSIONS = "eval"
"""The commands of plugins come before this one, in its panel."""


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
        self._extend()
        # A plugin's command is before the one that it is put beside.
        order = {name: place for place, name in enumerate(PANELS)}
        beside = order[EXTENSIONS] - 0.5
        return sorted(super().list_commands(ctx), key=lambda name: order.get(name, beside))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            self._extend()
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            command.rich_help_panel = PANELS.get(cmd_name, PANELS[EXTENSIONS])
        return command

    def _extend(self) -> None:
        """Add the commands of plugins: only where one is asked for, since others start faster."""
        for command in extensions():
            self.commands.setdefault(command.name, command)


class App(typer.Typer):
    """A Typer application whose commands are `Command`s."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=Commands, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        decorator: Callable[[F], F] = super().command(name, cls=Command, **settings)
        return decorator
