"""The command line. This module imports little; every command imports what it needs."""

import atexit
import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from groupwise.cli.completion import run_folders
from groupwise.cli.errors import INTERRUPTED
from groupwise.cli.group import Command, Commands
from groupwise.kit.terminal import printable

if TYPE_CHECKING:
    from groupwise.config.load import LoadedConfig
    from groupwise.storage.run_folder import Resume

NOTE_AFTER, PATIENCE = 30.0, 600.0
"""Seconds after which a command that is done says for which threads, such as an upload's, it waits,
and after which it ends without them."""

app = typer.Typer(
    name="groupwise",
    cls=Commands,
    help="Train language and image models by GRPO: sample, score, learn from the differences.",
    epilog="Begin with: groupwise init run.yaml --model MODEL --task math",
    no_args_is_help=True,
    # A traceback is a bug of ours and belongs in the report as it is.
    pretty_exceptions_enable=False,
)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="a YAML file")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="set single values: train.steps=5 rewards.0.weight=2"),
]
RunArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="the folder of a run", autocompletion=run_folders),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="print no progress")]


def _version(wanted: bool) -> None:
    if wanted:
        from groupwise.version import __version__

        typer.echo(f"groupwise {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    # It warns of an optional kernel wherever another library imports it.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


@app.command(cls=Command)
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on from the run's last checkpoint")
    ] = False,
    auto_resume: Annotated[
        bool, typer.Option("--auto-resume", help="the same if there is one, else begin the run")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace an older run in the same folder")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train: evaluate, make the steps, evaluate again, write a report."""
    from groupwise.storage.run_info import read_config

    # Before torch is imported, so that a mistake in the file is reported at once.
    loaded = read_config(config, overrides or ())
    how: Resume = "auto" if auto_resume else resume
    _train(loaded, resume=how, overwrite=overwrite, quiet=quiet)


@app.command(cls=Command)
def resume(
    run: RunArgument,
    overrides: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Go on with a run from its last checkpoint.

    Uses the run's own configuration; the current folder does not matter.
    """
    from groupwise.storage.run_info import run_config

    _train(run_config(run, overrides or ()), resume=True, quiet=quiet)


def _train(
    loaded: "LoadedConfig", *, resume: "Resume", overwrite: bool = False, quiet: bool = False
) -> None:
    from groupwise.display import installed_display
    from groupwise.kit import progress

    is_first = os.environ.get("RANK", "0") == "0"
    with installed_display(quiet=quiet or not is_first) as display:
        progress.start("importing torch")
        from groupwise.run.train import train_from_config

        result = train_from_config(
            loaded, resume=resume, overwrite=overwrite, quiet=quiet, display=display
        )
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)


@app.command(cls=Command)
def check(
    config: ConfigFile,
    overrides: Overrides = None,
    processes: Annotated[
        int,
        typer.Option("--processes", envvar="WORLD_SIZE", min=1, help="how many the run will have"),
    ] = 1,
) -> None:
    """Try a configuration without its weights: counts, prompts, memory.

    Builds everything else that a run builds, and finds the same mistakes.
    """
    with _uncollected():
        from groupwise.storage.run_info import read_config

        loaded = read_config(config, overrides or ())
        from groupwise.cli.check import describe

        text = describe(loaded, processes=processes)
    typer.echo(printable(text))


@contextmanager
def _uncollected() -> Iterator[None]:
    """A context without Python's collector of cycles. While so much is imported it is called for
    hardly any garbage, and takes a fifth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@app.command("eval", cls=Command)
def evaluate(
    run: RunArgument,
    overrides: Overrides = None,
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="a new folder; RUN/evaluations/step_N if unset"),
    ] = None,
) -> None:
    """Evaluate the last checkpoint of a run again.

    Metrics, samples and a page get a folder of their own; the run stays as it was.
    """
    from groupwise.kit.metric_names import titled
    from groupwise.run.evaluate import evaluate_run

    is_first = os.environ.get("RANK", "0") == "0"
    evaluated = evaluate_run(run, overrides or (), output=output, quiet=not is_first)
    for why in evaluated.failures.values():
        typer.secho(printable(f"warning: {why}"), err=True)
    _print_metrics({titled(n, evaluated.accuracy): x for n, x in evaluated.metrics.items()})
    for path in evaluated.reports:
        typer.echo(f"report: {path}", err=True)


def _print_metrics(metrics: Mapping[str, float]) -> None:
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        typer.echo(f"{name:<{width}}  {value:.4g}")


def main() -> None:
    """The entry point of the `groupwise` command."""
    code = 1
    try:
        app()
        code = 0
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(bool(done.code))
        raise
    finally:
        _leave_threads(code)


def _leave_threads(code: int) -> None:
    """Do not wait for ever for threads that called code, such as a reward, has left running."""

    def note(then: str) -> None:
        others = (t for t in threading.enumerate() if t is not threading.main_thread())
        names = ", ".join(repr(t.name) for t in others if not t.daemon)
        typer.secho(f"note: all is done, but the thread {names} goes on; {then}", err=True)

    def leave() -> None:
        try:
            note("it is ended")
            sys.stdout.flush()
        finally:  # even where the output is closed
            os._exit(code)

    waits = f"waiting {PATIENCE:g} s for it (Ctrl-C ends it)"
    for timer in (
        threading.Timer(min(NOTE_AFTER, PATIENCE / 2), note, [waits]),
        threading.Timer(PATIENCE, leave),
    ):
        timer.daemon = True
        atexit.register(timer.cancel)  # called when all threads have ended
        timer.start()
