"""The command line. Imports of its own are light; every command imports what it needs."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from groupwise.errors import UserError

if TYPE_CHECKING:
    from groupwise.config.load import LoadedConfig
    from groupwise.plugins.registry import Entry, Registry
    from groupwise.storage.place import Resume

INTERRUPTED = 130
"""What shells expect of a program that Ctrl-C ended."""

app = typer.Typer(
    name="groupwise",
    help="Group Relative Policy Optimization for any policy that exposes log-probs.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback is a bug of ours and belongs in the report as it is.
    pretty_exceptions_enable=False,
)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="a YAML file")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="set single values: train.steps=5 rewards.0.weight=2"
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run")]


@contextmanager
def telling() -> Iterator[None]:
    """Errors that the user can mend become one red line and exit code 2."""
    try:
        yield
    except UserError as error:
        raise _told(str(error)) from error
    except KeyboardInterrupt as error:
        typer.secho("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error
    except Exception as error:
        from groupwise.storage.disk import is_of_disk, reason

        if is_of_disk(error):
            raise _told(reason(error)) from error
        from groupwise.processes import loss_of_others

        if (lost := loss_of_others(error)) is not None:
            raise _told(lost) from error
        raise _without_secrets(error) from error


def _without_secrets(error: Exception) -> Exception:
    """What to raise for a bug, of us or of a plugin: its traceback, unless that shows a secret."""
    import traceback

    from groupwise.secrets import redacted

    shown = "".join(traceback.format_exception(error))
    if redacted(shown) == shown:
        return error
    typer.echo(redacted(shown), err=True)
    return typer.Exit(1)


def _told(message: str) -> typer.Exit:
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    return typer.Exit(2)


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
    pass


@app.command()
@telling()
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="go on from the checkpoint")] = False,
    auto_resume: Annotated[
        bool, typer.Option("--auto-resume", help="go on if there is a checkpoint, else begin")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an older run")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Train by a configuration, with an evaluation before and after, and write a report."""
    from groupwise.storage.facts import read_config

    # Before torch is imported: a mistake in the file is told at once.
    loaded = read_config(config, overrides or ())
    how: Resume = "auto" if auto_resume else resume
    _train(loaded, resume=how, overwrite=overwrite, quiet=quiet)


@app.command()
@telling()
def resume(
    run: RunFolder,
    overrides: Overrides = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Go on with a run from its last checkpoint, by its own configuration, from any folder."""
    from groupwise.storage.facts import run_config

    _train(run_config(run, overrides or ()), resume=True, quiet=quiet)


def _train(
    loaded: "LoadedConfig", *, resume: "Resume", overwrite: bool = False, quiet: bool = False
) -> None:
    from groupwise.run.train import train_from_config

    result = train_from_config(loaded, resume=resume, overwrite=overwrite, quiet=quiet)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)


@app.command()
@telling()
def check(
    config: ConfigFile,
    overrides: Overrides = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", envvar="WORLD_SIZE", min=1, help="as many as the run will have"
        ),
    ] = 1,
) -> None:
    """Build everything but the weights; print batch arithmetic, prompts and a memory estimate."""
    from groupwise.storage.facts import read_config

    loaded = read_config(config, overrides or ())
    from groupwise.cli.check import describe

    typer.echo(describe(loaded, processes=processes))


@app.command("eval")
@telling()
def evaluate(run: RunFolder, overrides: Overrides = None) -> None:
    """Evaluate the last checkpoint of a run again, by the run's own configuration."""
    from groupwise.run.train import evaluate_run

    _print_metrics(evaluate_run(run, overrides or ()))


@app.command()
@telling()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="folders of runs")],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="the file to write; RUN/report.html, or comparison.html beside the runs"
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--watch", help="serve the page on this machine and keep it up to date")
    ] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="of --watch; 0 takes any that is free")
    ] = 0,
) -> None:
    """Write the page of a run again, or of several side by side; or follow runs in a browser."""
    from groupwise.report import write_comparison, write_report

    runs = list({run.resolve(): run for run in runs}.values())
    if follow and out is not None:
        raise UserError("--watch writes no file: leave out --out, or call report once without it")
    try:
        if follow:
            from groupwise.report.watch import watch

            watch(runs, port, say=typer.echo)
        else:
            written = write_report(runs[0], out) if len(runs) == 1 else write_comparison(runs, out)
            typer.echo(str(written))
    except ValueError as error:
        raise UserError(str(error)) from error


@app.command()
@telling()
def plugins(
    as_json: Annotated[bool, typer.Option("--json", help="as JSON, for other programs")] = False,
) -> None:
    """List what is installed: policies, samplers, rewards, algorithms, callbacks and others."""
    from groupwise.plugins.registry import installed

    registry = installed()
    if as_json:
        typer.echo(json.dumps(_registry_record(registry), indent=2))
    else:
        _print_registry(registry)


def _print_metrics(metrics: Mapping[str, float]) -> None:
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        typer.echo(f"{name:<{width}}  {value:.4g}")


def _duplicates(registry: "Registry") -> list[dict[str, Any]]:
    """Names that more than one plugin registered; asking for one is an error."""
    plugins_of: dict[tuple[str, str], list[str]] = {}
    for entry in registry.entries:
        plugins_of.setdefault((entry.kind, entry.name), []).append(entry.plugin)
    return [
        {"kind": kind, "name": name, "plugins": owners}
        for (kind, name), owners in plugins_of.items()
        if len(owners) > 1
    ]


def _registry_record(registry: "Registry") -> dict[str, Any]:
    from groupwise.plugins.docstrings import line
    from groupwise.plugins.registry import missing_requirements

    keys = ("kind", "name", "target", "extra", "plugin", "distribution")
    return {
        "entries": [
            {key: getattr(entry, key) for key in keys}
            | {"line": line(entry.target), "missing": missing_requirements(entry)}
            for entry in registry.entries
        ],
        "failures": dict(registry.failures),
        "switched_off": list(registry.switched_off),
        "duplicates": _duplicates(registry),
    }


def _print_registry(registry: "Registry") -> None:
    from rich.console import Console

    from groupwise.plugins.registry import KINDS, SWITCHED_OFF

    console = Console()
    if not console.is_terminal:
        # Nobody to see a narrow window: cut nothing when piped into a file or grep.
        console = Console(width=200)
    for kind in KINDS:
        entries = [entry for entry in registry.entries if entry.kind == kind]
        if entries:
            console.print(_kind_table(kind, entries))
    for plugin, reason in registry.failures.items():
        console.print(f"plugin {plugin!r} could not be loaded: {reason}", style="red", markup=False)
    if registry.switched_off:
        console.print(f"switched off by {SWITCHED_OFF}: {', '.join(registry.switched_off)}")
    for name, hint in registry.misnamed.items():
        console.print(
            f"{SWITCHED_OFF} names {name!r}, and no plugin is called so{hint}",
            style="red",
            markup=False,
        )
    for twice in _duplicates(registry):
        both = [f"{plugin}/{twice['name']}" for plugin in twice["plugins"]]
        console.print(
            f"{twice['name']!r} in {twice['kind']} is registered by several plugins; "
            f"name one of them as {' or '.join(both)}",
            style="red",
            markup=False,
        )


def _kind_table(kind: str, entries: list["Entry"]) -> Any:
    from rich.table import Table
    from rich.text import Text

    from groupwise.plugins.docstrings import line
    from groupwise.plugins.registry import missing_requirements

    table = Table("name", "plugin", "what it is", "", title=kind, title_justify="left", box=None)
    for entry in sorted(entries, key=lambda entry: entry.name):
        missing = missing_requirements(entry)
        # As Text: the brackets of an extra would be read as markup.
        need = f"needs pip install '{entry.distribution}[{entry.extra}]'" if missing else ""
        source = f"{entry.plugin} ({entry.distribution})"
        table.add_row(*map(Text, (entry.name, source, line(entry.target), need)))
    return table


def main() -> None:
    """The entry point of the `groupwise` command."""
    app()
