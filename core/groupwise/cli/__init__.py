"""The command line, `groupwise` and `python -m groupwise`.

Its commands are those of `commands.py` and those that plugins register. To run one from Python, as
a test does: `typer.testing.CliRunner().invoke(groupwise.cli.app, ["check", "run.yaml"])`.
"""

from groupwise.cli.commands import app, main

__all__ = ["app", "main"]
