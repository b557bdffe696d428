"""The group of all commands, those of plugins included: its help, and its errors."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from groupwise.cli.errors import reporting_errors
from groupwise.kit.errors import UserError

PANELS: Mapping[str, str] = {
    "init": "Start a run",
    "port": "Start a run",
    "check": "Start a run",
    "train": "Start a run",
    "resume": "Start a run",
    "eval": "Use a run",
    "sample": "Use a run",
    "plugins": "See what is installed",
}
"""The panel of each command in `--help`, in the order in which users need them."""
OTHERS = "eval"
"""Any other command comes before this one, in its panel."""
TRACEBACK = "--traceback"
ANY = {"allow_extra_args": True, "ignore_unknown_options": True}


def _without_values(parameters: list[Any]) -> list[Any]:
    """The parameters; flags show no type, which would look like a required value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command whose help shows `--resume`, and not `--resume <bool>`.

    A subclass may add parameters in `get_params`.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_values([*super().get_params(ctx), *_common_options()])


class Commands(TyperGroup):
    """All commands, in panels. Those of plugins are loaded only where one of them, or a list of all
    commands, is needed, since the others start faster."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_values(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        self._add(_of_plugins())
        # A plugin's command is before the one that it is put beside.
        order = {name: place for place, name in enumerate(PANELS)}
        beside = order[OTHERS] - 0.5
        return sorted(super().list_commands(ctx), key=lambda name: order.get(name, beside))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            from groupwise.registry import installed

            is_known = installed().named("commands", cmd_name)
            self._add([cmd_name] if is_known else _of_plugins())  # all of them, as suggestions
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            command.rich_help_panel = PANELS.get(cmd_name, PANELS[OTHERS])
        return command

    def _add(self, names: list[str]) -> None:
        for name in names:
            if name not in self.commands:
                self.commands[name] = _loaded(name)

    def invoke(self, ctx: Any) -> Any:
        # `meta` is that of the command's own context, too.
        with reporting_errors(whole=lambda: bool(ctx.meta.get(TRACEBACK))):
            return super().invoke(ctx)


def _keep_traceback(context: typer.Context, wanted: bool) -> None:
    context.meta[TRACEBACK] = wanted  # for `Commands.invoke`


def _common(
    _: Annotated[
        bool,
        typer.Option(
            TRACEBACK,
            callback=_keep_traceback,
            expose_value=False,
            help="show all calls that led to an error",
        ),
    ] = False,
) -> None:
    """The options that every command has."""


def _common_options() -> list[Any]:
    app = typer.Typer(add_completion=False)
    app.command()(_common)
    return [*typer.main.get_command(app).params]


def _of_plugins() -> list[str]:
    """The names of the commands that plugins register."""
    from groupwise.registry import installed

    return [*dict.fromkeys(each.name for each in installed().entries if each.kind == "commands")]


def _loaded(name: str) -> Any:
    """The command that a plugin registers; one that cannot be loaded only says why."""
    from groupwise.registry import installed

    app = typer.Typer(add_completion=False)
    try:
        target = installed().load("commands", name)
        if isinstance(target, typer.Typer):
            app = target
        else:
            app.command(cls=Command)(target)
    except UserError as error:
        app.command(cls=Command, context_settings=ANY)(_raising(error))
    command = typer.main.get_command(app)
    command.name = name
    return command


def _raising(error: UserError) -> Callable[[], None]:
    def fail() -> None:
        raise error

    fail.__doc__ = str(error)
    return fail
