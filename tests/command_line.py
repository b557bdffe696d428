"""A command of `groupwise`, run in this process."""

from typing import Any

from typer.testing import CliRunner, Result

from groupwise.cli import app


def call(*arguments: object, **settings: Any) -> Result:
    """Its exit code and output; settings: those of Typer's `CliRunner.invoke`."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **settings)
