"""Extensions: the commands that plugins add to the command line."""

from collections.abc import Callable, Iterator
from typing import Any

import typer

from groupwise.errors import UserError

ANY = {"allow_extra_args": True, "ignore_unknown_options": True}


def extensions() -> Iterator[Any]:
    """The commands of all plugins; one that cannot be loaded only says why."""
    from groupwise.cli.commands import reporting_errors
    from groupwise.cli.help import App
    from groupwise.plugins.registry import installed

    for name in dict.fromkeys(e.name for e in installed().entries if e.kind == "commands"):
        app = App(add_completion=False)
        try:
            app.command(name)(reporting_errors()(installed().load("commands", name)))
        except UserError as error:
            app.command(name, context_settings=ANY)(reporting_errors()(_raising(error)))
        yield typer.main.get_command(app)


def _raising(error: UserError) -> Callable[[], None]:
    def fail() -> None:
        raise error

    fail.__doc__ = str(error)
    return fail
