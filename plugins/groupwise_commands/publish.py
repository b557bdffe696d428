"""`groupwise publish`: a run's model, with its card, to the Hugging Face hub."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from groupwise.cli.completion import run_folders
from groupwise.kit.errors import UserError, first_line
from groupwise.storage.files import CONFIG, MODEL, RUN_INFO, SAMPLES
from groupwise.storage.run_info import no_run

WORDS = (".md", ".json", ".jinja", ".yaml", ".txt")
"""What ends the name of a file in which a folder of this machine may be named."""
PAGE = "report.html"


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """A file that leaves the machine: its name in the repository, and its content."""

    name: str
    content: Path | bytes

    @property
    def size(self) -> int:
        """In bytes."""
        own = self.content
        return len(own) if isinstance(own, bytes) else own.stat().st_size


def publish(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="the folder of a run", autocompletion=run_folders),
    ],
    repository: Annotated[
        str, typer.Argument(metavar="NAME", help="of the repository, as you/model")
    ],
    *,
    base: Annotated[
        str | None,
        typer.Option("--base", help="the base model's name on the hub, for a folder of this one"),
    ] = None,
    page: Annotated[
        bool,
        typer.Option(
            "--page", help="also page, samples and configuration, which hold your prompts"
        ),
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="a new repository that everybody sees")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only list what would leave this machine")
    ] = False,
) -> None:
    """Send a run's model and its card to the Hugging Face hub.

    Prints what leaves before it does. A new repository is private unless --public is set.

    groupwise publish runs/arithmetic you/model --dry-run
    """
    files = [*leaving(run, repository, base=base, page=page)]
    width = max(len(file.name) for file in files)
    for file in files:
        typer.echo(f"{file.name:<{width}}  {file.size:>14,} bytes")
    for line in _of_this_machine(files):
        typer.echo(f"note: names a folder of this machine: {line}", err=True)
    if dry_run:
        return
    typer.echo(_send(files, repository, private=not public))


def leaving(
    run: Path, repository: str, *, base: str | None = None, page: bool = False
) -> Iterator[Leaving]:
    """The files of a run that `publish` sends, in which the repository stands for the model's
    folder, and `base` for that of the base model.

    Raises UserError for a folder without a run, or without a saved model.
    """
    if not (run / RUN_INFO).exists():
        raise UserError(no_run(run, RUN_INFO))
    model = run / MODEL
    if not any(model.glob("*")):
        raise UserError(
            f"{run} has no saved model: a run saves it at its end; `groupwise resume {run}` goes on"
        )
    names = {str(model.resolve()): repository}
    if base is not None:
        names |= dict.fromkeys(_bases(model / "README.md"), base)
    for path in sorted(path for path in model.rglob("*") if path.is_file()):
        yield _file(path, path.relative_to(model).as_posix(), names)
    if page:
        for path in (run / PAGE, run / CONFIG, *sorted((run / SAMPLES).rglob("*"))):
            if path.is_file():
                yield _file(path, f"run/{path.relative_to(run).as_posix()}", {})


def _file(path: Path, name: str, names: dict[str, str]) -> Leaving:
    if not path.name.endswith(WORDS):
        return Leaving(name=name, content=path)
    text = own = path.read_text("utf-8")
    for folder, other in names.items():
        text = text.replace(folder, other)
    return Leaving(name=name, content=path if text == own else text.encode())


def _bases(card: Path) -> list[str]:
    """The base model as the card names it."""
    lines = card.read_text("utf-8").splitlines() if card.exists() else []
    return [line.partition(": ")[2] for line in lines if line.startswith("base_model: ")][:1]


def _of_this_machine(files: list[Leaving]) -> Iterator[str]:
    """The first line of each file of the model in which one of this machine's folders stands."""
    home = str(Path.home())
    for file in files:
        if file.name.startswith("run/") or not file.name.endswith(WORDS):
            continue
        own = file.content
        text = own.decode() if isinstance(own, bytes) else own.read_text("utf-8")
        folders = (home, str(Path.cwd()))
        line = next((each for each in text.splitlines() if any(f in each for f in folders)), None)
        if line is not None:
            yield f"{file.name}: {line.strip():.120}"


def _send(files: list[Leaving], repository: str, *, private: bool) -> str:
    """Send the files in one commit; returns the address of the repository."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    api = HfApi()
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.create_commit(
            repository,
            [CommitOperationAdd(file.name, file.content) for file in files],
            commit_message="A model trained with Groupwise",
        )
    except LocalTokenNotFoundError as error:
        raise UserError("there is no token of the hub: log in by `hf auth login`") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise UserError(f"{repository}: {first_line(error)}") from error
    return str(address)
