"""`groupwise init`: a configuration to begin with."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from groupwise.cli.group import Command
from groupwise.kit.errors import UserError

if TYPE_CHECKING:
    from groupwise.kit.draft import Draft

app = typer.Typer(add_completion=False)
"""Write a configuration to begin with, for a model and a task."""
MODELS = "groupwise.models"
"""In the context of the command: by name of a draft, the model that its option names."""


def task_names(incomplete: str) -> list[str]:
    """What the shell suggests: tasks of any kind of model."""
    from groupwise_commands.draft import drafts, tasks

    names = {task for kind in drafts().values() for task in tasks(kind)}
    return sorted(name for name in names if name.startswith(incomplete))


class Init(Command):
    """The command, with an option `--NAME MODEL` for every draft that plugins register."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters, options = super().get_params(ctx), _model_options()
        place = [parameter.name for parameter in parameters].index("task")
        parameters[place].help = _help_of_tasks()
        return [*parameters[:place], *options, *parameters[place:]]


@cache
def _model_options() -> list[Any]:
    from groupwise_commands.draft import drafts

    return [_model_option(name, kind) for name, kind in drafts().items()]


def _model_option(name: str, kind: "Draft") -> Any:
    app = typer.Typer(add_completion=False)

    def keep(context: typer.Context, value: str | None) -> None:
        if value is not None:
            context.meta.setdefault(MODELS, {})[name] = value

    @app.command()
    def option(
        model: Annotated[
            str | None,
            typer.Option(
                f"--{name}",
                help=f"train {kind.model}: hub name or folder",
                callback=keep,
                expose_value=False,
            ),
        ] = None,
    ) -> None: ...

    (made,) = typer.main.get_command(app).params
    made.name = name  # Typer's is the argument's, which is the same for all
    return made


def _help_of_tasks() -> str:
    """The tasks of each kind of model."""
    from groupwise_commands.draft import drafts, shown, tasks

    each = (
        f"of --{name} {', '.join(shown(kind, task) for task in tasks(kind))}"
        for name, kind in drafts().items()
    )
    return "; ".join(each)


@app.command(cls=Init)
def init(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="the YAML file to write")],
    *,
    task: Annotated[str | None, typer.Option("--task", autocompletion=task_names)] = None,
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
    reward: Annotated[
        str | None,
        typer.Option(
            "--reward",
            metavar="MODULE:NAME",
            help="a reward of your own, or the name of one that needs no options; with --dataset",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace a file that is there")] = False,
) -> None:
    """Write a configuration to begin with, for a model and a task.

    Asks nothing and downloads nothing. Edit the file afterwards: a comment beside each key says
    what it is for.

    groupwise init run.yaml --model MODEL --task math

    groupwise init run.yaml --model MODEL --dataset questions.csv

    groupwise init run.yaml --image MODEL --dataset captions.csv --reward my_rewards:sharp
    """
    from groupwise_commands.draft import Choice, draft, drafts

    kinds, models = drafts(), context.meta.get(MODELS, {})
    if not kinds:
        raise UserError("no installed plugin has a draft of a configuration")
    if len(models) != 1:
        options = "; ".join(f"--{name}, {kind.model}" for name, kind in kinds.items())
        raise UserError(f"give one of these: {options}")
    if config.is_dir():
        raise UserError(f"{config} is a folder: name a file in it, as {config / 'run.yaml'}")
    if config.exists() and not force:
        raise UserError(f"{config} is there already; --force replaces it")
    from groupwise.building.validation import validate
    from groupwise.storage.disk import write

    ((name, model),) = models.items()
    choice = Choice(
        model=model, task=task, dataset=dataset, prompt=prompt, answer=answer, reward=reward
    )
    text = draft(kinds[name], choice, config)
    validate(text, config, own_reward=reward is not None)
    config.parent.mkdir(parents=True, exist_ok=True)
    write(config, text)
    typer.echo(f"wrote {config}; next:\n  groupwise check {config}\n  groupwise train {config}")
