"""Errors: what the user can fix is one red line, and only a bug is a traceback."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from groupwise.kit.errors import UserError
from groupwise.kit.terminal import printable

INTERRUPTED = 130
"""The exit code that shells expect from a program that Ctrl-C ended."""


@contextmanager
def reporting_errors(*, whole: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """A context that prints errors which the user can fix as one red line, with exit code 2.

    whole: whether to show before it all calls that led to the error.
    """
    try:
        yield
    except UserError as error:
        if whole():
            typer.echo(_traceback(error), err=True)
        raise _exit(str(error)) from error
    except KeyboardInterrupt as error:
        typer.secho("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error
    except Exception as error:
        if isinstance(error, typer.Abort) or hasattr(error, "exit_code"):  # Typer's own
            raise
        from groupwise.storage.disk import is_of_disk, reason

        if is_of_disk(error):
            raise _exit(reason(error)) from error
        from groupwise.kit.processes import loss_of_others

        if (lost := loss_of_others(error)) is not None:
            raise _exit(lost) from error
        raise _without_secrets(error) from error


def _without_secrets(error: Exception) -> Exception:
    """The exception to raise for a bug: the same, or an exit with another traceback if its own
    contains a secret or control characters."""
    import traceback

    shown = "".join(traceback.format_exception(error))
    if _traceback(error) == shown:
        return error
    typer.echo(_traceback(error), err=True)
    return typer.Exit(1)


def _traceback(error: Exception) -> str:
    """All calls that led to an error, and to those that it follows from; secrets are masked, and
    control characters escaped."""
    import traceback

    from groupwise.kit.secrets import redacted

    return printable(redacted("".join(traceback.format_exception(error))))


def _exit(message: str) -> typer.Exit:
    """Print an error; returns the exception to raise."""
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    return typer.Exit(2)
