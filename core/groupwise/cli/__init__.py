"""The command line: `groupwise` and `python -m groupwise`."""

from groupwise.cli.commands import app, main

__all__ = ["app", "main"]
