"""`groupwise port`: a configuration of another framework, written as one of ours."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from groupwise.kit.errors import UserError, did_you_mean
from groupwise.kit.terminal import printable


def framework_names(incomplete: str) -> list[str]:
    """What the shell suggests."""
    from groupwise_commands.porting.frameworks import FRAMEWORKS

    return [name for name in FRAMEWORKS if name.startswith(incomplete)]


def port(
    framework: Annotated[
        str,
        typer.Argument(
            metavar="trl|flow_grpo",
            help="whose configuration it is",
            autocompletion=framework_names,
        ),
    ],
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG", help="their file; of flow_grpo FILE.py:NAME. It is read, never run"
        ),
    ],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", help="the YAML file to write; printed if unset")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            min=1,
            help="processes (GPUs) that it ran with; the file's, or 1, if unset",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace a file that is there")] = False,
) -> None:
    """Write a configuration of TRL or flow_grpo as ours.

    A comment gives the reason for every number that changes, and the beginning of the file lists
    what has no counterpart here.

    groupwise port trl train_grpo.py --output run.yaml

    groupwise port flow_grpo config/grpo.py:pickscore_sd3 --output run.yaml
    """
    from groupwise.building.validation import validate_registered
    from groupwise.storage.disk import write
    from groupwise_commands.porting.draft import draft, notes
    from groupwise_commands.porting.frameworks import FRAMEWORKS
    from groupwise_commands.porting.translate import translate

    known = FRAMEWORKS.get(framework)
    if known is None:
        hint = did_you_mean(framework, FRAMEWORKS)
        raise UserError(f"{framework}: unknown{hint}; expected one of {', '.join(FRAMEWORKS)}")
    if output is not None and output.is_dir():
        raise UserError(f"--output: {output} is a folder: name a file in it")
    if output is not None and output.exists() and not force:
        raise UserError(f"{output} is there already; --force replaces it")
    ported = translate(known.table, known.read(config), processes)
    text = draft(ported, f"{config} of {known.title}: made by `groupwise port`.")
    if output is None:
        typer.echo(printable(text), nl=False)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        write(output, text)
        _print(notes(ported))
        first = " do what is left to do, then" if ported.todo else ""
        typer.echo(f"wrote {output}; next:{first}\n  groupwise check {output}")
    try:
        validate_registered(text, output or Path("run.yaml"))
    except UserError as error:
        typer.secho(f"warning: `groupwise check` will say: {error}", err=True, fg="yellow")


def _print(notes: Mapping[str, list[str]]) -> None:
    for title, items in notes.items():
        typer.echo(f"{title}:")
        for item in items:
            typer.echo(printable(f"  {item}"))
