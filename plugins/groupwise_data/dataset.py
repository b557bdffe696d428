"""Dataset: prompts from anything that the `datasets` library reads."""

from collections.abc import Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

from datasets import ReadInstruction, disable_progress_bars, load_dataset
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from groupwise import attachments
from groupwise.kit.errors import UserError, did_you_mean, first_line
from groupwise.kit.options import PathOrName, TakesObject, nearest, searched
from groupwise.prompt_source import is_chat
from groupwise.rewards import OWN_ARGUMENTS
from groupwise_data.arrow import float_notes, of_object, without_nulls
from groupwise_data.csv_file import check_messages, messages_of, read_csv
from groupwise_data.encoding import encoding_hint
from groupwise_data.folder import read_folder
from groupwise_data.json_file import JsonRows, read_json, read_json_lines
from groupwise_data.pictures import with_pictures
from groupwise_messages.wording import Wording

PROMPT = "prompt"
READERS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt")
"""What ends the name of a file."""
CELLS = (".csv", ".tsv")
"""Those whose cells are text."""
TOOLS = "tools"
"""The column that the model sees besides the prompt."""
BY_DATASETS = {".parquet": "parquet", ".txt": "text"}
"""What of these `datasets` reads, by which reader: `text` has a row for each line."""


class Dataset:
    """Prompts from a JSONL, CSV, Parquet or text file, a folder, or a dataset on the hub.

    Columns are renamed first, so the template names them as rewards do; the one that holds the
    prompt keeps its own name, too. Relative paths of pictures are relative to the file, or to the
    folder. notes: on columns that other readers would change.
    """

    class Config(Wording, TakesObject):
        taken: ClassVar[str] = "path"

        path: PathOrName = Field(
            description="a file, a folder or a hub name; in Python also a DataFrame or a dataset"
        )
        split: str = Field("train", description="which split of it, or a part: `train[:1000]`")
        subset: str | None = Field(None, description="the hub dataset's configuration")
        prompt: str = Field(
            "prompt",
            description="column that holds the prompt; templates and rewards have it under this "
            "name, too",
        )
        image: str | None = Field(
            None,
            description="column that holds the prompt's picture, or a list of them; it becomes "
            "`image` or `images`",
        )
        columns: dict[str, str] = Field(
            default_factory=dict, description="columns to rename, old name to new name"
        )
        options: dict[str, Any] = Field(
            default_factory=dict,
            description="further arguments of datasets.load_dataset, or for a CSV file of "
            "pandas.read_csv, such as `{delimiter: ;}`",
        )

        _folders: tuple[Path, ...] = PrivateAttr(())

        @model_validator(mode="after")
        def _keeps_folders(self, info: ValidationInfo) -> Self:
            self._folders = (*searched(info),)  # for the message about a file that is missing
            return self

        @property
        def nearest(self) -> str:
            """The nearest file to `path`, if that is missing, and where it was looked for."""
            return nearest(self.path, self._folders)

    def __init__(self, config: Config) -> None:
        self.wording, self.path, self.instance = config, Path(config.path), config.instance
        self.image = config.image
        data, self.notes = _load(config)
        self.data = _rename(data, config)
        names = self.data.column_names
        self.prompt_column = next((n for n in (config.prompt, PROMPT) if n in names), None)
        config.check([*self.data.column_names, *([PROMPT] if self.prompt_column else [])])
        # A cell of a CSV file can hold messages only as text.
        self.has_json = self.path.suffix in CELLS and config.template is None
        if self.has_json:
            check_messages(self.data[self.prompt_column], config.path)
        if len(self.data) == 0:
            raise UserError(f"prompts: {config.path} has no rows")
        self.folder = self._folder()

    def _folder(self) -> Path | None:
        """Where paths of attachments begin; None for a hub name."""
        here = self.path if self.path.is_dir() else self.path.parent
        return here.resolve() if self.path.exists() and self.instance is None else None

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int, /) -> Mapping[str, Any]:
        row = dict(self._read(index))
        own = None if self.prompt_column is None else row[self.prompt_column]
        if self.has_json and own is not None:
            own = messages_of(str(own))
        if self.prompt_column in OWN_ARGUMENTS:
            del row[self.prompt_column]  # rewards have it as `prompts`, say
        if self.image is not None:
            row = with_pictures(row, self.image)
        row[PROMPT] = self.wording.worded({**row, PROMPT: own}, own)
        if self.folder is None:
            return row
        return attachments.of_row(row, partial(attachments.located, folder=self.folder))

    def of_text(self, text: str) -> Mapping[str, Any]:
        row = self.wording.of_text(text)
        if self.wording.template is None and not self.wording.chat and is_chat(self[0]["prompt"]):
            return {**row, "prompt": [{"role": "user", "content": text}]}
        return row

    def _read(self, index: int) -> Mapping[str, Any]:
        """The row as `datasets` reads it, which opens pictures, without keys that Arrow has added.
        Raises UserError with the number of the row and the name of the column that it cannot read.
        """
        try:
            row = self.data[index]
            if isinstance(self.data, JsonRows):
                return row
            shown = {TOOLS, self.prompt_column or TOOLS} & {*row}
            return {**row, **{name: without_nulls(row[name]) for name in shown}}
        except IndexError:
            raise
        except Exception as error:  # of whatever opens a picture
            names = [name for name in self.data.column_names if not self._reads(index, name)]
            column = f", column {names[0]!r}" if names else ""
            raise UserError(
                f"prompts: {self.path}, row {index}{column} cannot be read: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error

    def _reads(self, index: int, name: str) -> bool:
        try:
            self.data.select_columns([name])[index]
        except Exception:
            return False
        return True


def _load(config: Dataset.Config) -> tuple[Any, list[str]]:
    """The rows, a table of `datasets` or `JsonRows`, and notes on their columns."""
    disable_progress_bars()  # they would tear up the run's own
    if config.instance is not None:
        return of_object(config.instance, config.split)
    path = Path(config.path)
    is_file = path.suffix in READERS
    if is_file and not path.exists():
        raise UserError(f"prompts: no file {path}{config.nearest}")
    if is_file and path.stat().st_size == 0:
        raise UserError(f"prompts: {path} is empty")
    try:
        match path.suffix:
            case ".csv" | ".tsv":
                table, notes = read_csv(path, config.options)
                return _part(table, config.split), notes
            case ".jsonl":
                return _part(read_json_lines(path, config.options), config.split), []
            case ".json":
                return _part(read_json(path, config.options), config.split), []
            case suffix if suffix in BY_DATASETS:
                files = {"data_files": str(path), "split": config.split}
                data, notes = load_dataset(BY_DATASETS[suffix], **files, **config.options), []
            case _:
                data, notes = read_folder(config.path, config.subset, config.split, config.options)
        return data, notes + float_notes(data, config.path)
    except UserError:
        raise
    except Exception as error:  # datasets raises a dozen kinds; all mean the data cannot be read
        cause = error.__cause__ or error
        hint = encoding_hint(path) if is_file and isinstance(cause, UnicodeError) else ""
        raise UserError(f"prompts: cannot read {config.path}: {first_line(cause)}{hint}") from error


def _part(table: Any, split: str) -> Any:
    """The rows of a file that are in a split, as `train[:1000]`."""
    parts = ReadInstruction.from_spec(split).to_absolute({"train": len(table)})
    rows = [range(len(table))[part.from_ : part.to] for part in parts]
    return table if rows == [range(len(table))] else table.select([*chain(*rows)])


def _rename(data: Any, config: Dataset.Config) -> Any:
    needed = [] if config.prompt == PROMPT else [config.prompt]
    needed += [] if config.image is None else [config.image]
    for old in (*needed, *config.columns):
        if old not in data.column_names:
            raise UserError(
                f"prompts: {config.path} has no column {old!r}"
                f"{did_you_mean(old, data.column_names)} (it has {', '.join(data.column_names)})"
            )
    changed = {old: new for old, new in config.columns.items() if old != new}
    data = data.rename_columns(changed) if changed else data
    if not {PROMPT, config.prompt} & {*data.column_names} and config.template is None:
        raise UserError(
            f"prompts: {config.path} has no column 'prompt' (it has "
            f"{', '.join(data.column_names)}); name it with `prompt: COLUMN`, or make the prompt "
            f"of several columns with `template: ...`"
        )
    return data
