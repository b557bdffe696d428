"""`groupwise report`: writes the page of runs, or serves it while they go on."""

from pathlib import Path
from typing import Annotated

import typer

from groupwise.cli.completion import run_folders
from groupwise.kit.errors import UserError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="folders of runs", autocompletion=run_folders),
    ],
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
    """Write the page of one or several runs, or show it while they go on."""
    runs = list({run.resolve(): run for run in runs}.values())
    if follow and out is not None:
        raise UserError("--watch writes no file: leave out --out, or call report once without it")
    try:
        if follow:
            from groupwise_report.watch import watch

            watch(runs, port, say=typer.echo)
        else:
            from groupwise_report.writing import write_comparison, write_report

            written = write_report(runs[0], out) if len(runs) == 1 else write_comparison(runs, out)
            typer.echo(str(written))
    except ValueError as error:
        raise UserError(str(error)) from error
