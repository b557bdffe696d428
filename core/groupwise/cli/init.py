"""`groupwise init`: a configuration to begin with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from groupwise.cli.commands import app, reporting_errors
from groupwise.cli.completion import tasks
from groupwise.errors import UserError

if TYPE_CHECKING:
    from groupwise.config.load import LoadedConfig


@app.command()
@reporting_errors()
def init(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="the YAML file to write")],
    *,
    model: Annotated[
        str | None, typer.Option("--model", help="train this language model: hub name or folder")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", help="train this image model, in place of --model")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            help="math, numbers, words or reasoning_gym:TASK; of images preference or writing",
            autocompletion=tasks,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", help="prompts: a CSV, JSONL or Parquet file, or a hub name"),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="its column of prompts; by its name if unset")
    ] = None,
    answer: Annotated[
        str | None, typer.Option("--answer", help="its column of answers; by its name if unset")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace a file that is there")] = False,
) -> None:
    """Write a configuration to begin with, for a model and a task.

    Asks nothing and downloads nothing. Edit the file afterwards: a comment beside each key says
    what it is for.

    groupwise init run.yaml --model MODEL --task math

    groupwise init run.yaml --model MODEL --task reasoning_gym:chain_sum

    groupwise init run.yaml --model MODEL --dataset questions.csv

    groupwise init run.yaml --image MODEL --task preference
    """
    if (model is None) == (image is None):
        raise UserError("give one of --model, a language model, and --image, an image model")
    if config.is_dir():
        raise UserError(f"{config} is a folder: name a file in it, as {config / 'run.yaml'}")
    if config.exists() and not force:
        raise UserError(f"{config} is there already; --force replaces it")
    from groupwise.cli.draft import Choice, draft
    from groupwise.config.load import load_text
    from groupwise.storage import disk

    choice = Choice(
        model=str(model or image),
        modality="text" if image is None else "image",
        task=task,
        dataset=dataset,
        prompt=prompt,
        answer=answer,
    )
    text = draft(choice, config)
    _check(load_text(text, config))
    config.parent.mkdir(parents=True, exist_ok=True)
    disk.write(config, text)
    typer.echo(f"wrote {config}; next:\n  groupwise check {config}\n  groupwise train {config}")


def _check(loaded: "LoadedConfig") -> None:
    """Raise UserError for what `check` refuses; hub data sets are not downloaded."""
    from groupwise import registry as plugins
    from groupwise.config.plugin_sections import plugin_sections

    registry, missing = plugins.installed(), dict[str, set[str]]()
    for kind, _, section in plugin_sections(loaded.config):
        for entry in registry.named(kind, section.name):
            if plugins.missing_requirements(entry):
                missing.setdefault(entry.distribution, set()).add(str(entry.extra))
    if missing:
        packages = [f"'{name}[{','.join(sorted(extras))}]'" for name, extras in missing.items()]
        command = f"pip install {' '.join(packages)}"
        raise UserError(f"this run needs extras that are not installed: {command}")
    from groupwise.run.parts import build_parts, check_sections

    check_sections(loaded, {})
    prompts = loaded.config.prompts
    if "path" not in prompts.options or (loaded.folder / prompts.options["path"]).exists():
        build_parts(loaded, {}).close()
