"""The command line: `groupwise` and `python -m groupwise`."""

from groupwise.cli import init as init
from groupwise.cli import plugins as plugins
from groupwise.cli.commands import app, main
from groupwise.cli.sample import sample

app.command()(sample)

__all__ = ["app", "main"]
