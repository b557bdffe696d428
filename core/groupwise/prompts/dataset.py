"""Dataset: prompts from anything that the `datasets` library reads."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from datasets import Dataset as HuggingFaceDataset
from datasets import DatasetDict, disable_progress_bars, load_dataset
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from groupwise import attachments
from groupwise.errors import UserError, did_you_mean, first_line
from groupwise.options import PathOrName, TakesObject, nearest, searched
from groupwise.prompt_source import is_chat
from groupwise.rewards import OWN_ARGUMENTS
from groupwise.wording import Wording

PROMPT = "prompt"
READERS = {
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "text",  # a column `text`, a row for each line
}


class Dataset:
    """Prompts from a JSONL, CSV, Parquet or text file, a folder, or a dataset on the hub.

    Columns are renamed first, so the template names them as rewards do; the one that holds the
    prompt keeps its own name, too. Relative paths of pictures are relative to the file, or to the
    folder.
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
        columns: dict[str, str] = Field(
            default_factory=dict, description="columns to rename, old name to new name"
        )
        options: dict[str, Any] = Field(
            default_factory=dict, description="further arguments of datasets.load_dataset"
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
        self.data = _rename(_load(config), config)
        names = self.data.column_names
        self.prompt_column = next((n for n in (config.prompt, PROMPT) if n in names), None)
        config.check([*self.data.column_names, *([PROMPT] if self.prompt_column else [])])
        # A cell of a CSV file can hold messages only as text.
        self.has_json = self.path.suffix == ".csv" and config.template is None
        if self.has_json:
            _check_cells(self.data[self.prompt_column], config.path)
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
        own = _messages(own) if self.has_json else own
        if self.prompt_column in OWN_ARGUMENTS:
            del row[self.prompt_column]  # rewards have it as `prompts`, say
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
        """The row as `datasets` reads it, which opens pictures. Raises UserError with the number of
        the row and the name of the column that it cannot read."""
        try:
            return self.data[index]
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


def _load(config: Dataset.Config) -> HuggingFaceDataset:
    disable_progress_bars()  # they would tear up the run's own
    if config.instance is not None:
        return _of_instance(config)
    path = Path(config.path)
    reader = READERS.get(path.suffix)
    if reader and not path.exists():
        raise UserError(f"prompts: no file {path}{config.nearest}")
    if reader and path.stat().st_size == 0:
        raise UserError(f"prompts: {path} is empty")
    if path.suffix == ".jsonl":
        _check_lines(path)
    try:
        if reader:
            return load_dataset(reader, data_files=str(path), split=config.split, **config.options)
        return load_dataset(config.path, config.subset, split=config.split, **config.options)
    except Exception as error:  # datasets raises a dozen kinds; all mean the data cannot be read
        reason = first_line(error.__cause__ or error)
        raise UserError(f"prompts: cannot read {config.path}: {reason}") from error


def _of_instance(config: Dataset.Config) -> HuggingFaceDataset:
    """The rows of an object that was passed in Python."""
    data = config.instance
    if isinstance(data, DatasetDict):
        if config.split not in data:
            raise UserError(
                f"prompts: the DatasetDict has no split {config.split!r} (it has "
                f"{', '.join(data)}); name one with `split: NAME`, or pass one of them"
            )
        data = data[config.split]
    if isinstance(data, HuggingFaceDataset):
        return data
    try:
        return HuggingFaceDataset.from_pandas(data, preserve_index=False)
    except Exception as error:  # of pyarrow, for columns that mix types
        raise UserError(
            f"prompts: the DataFrame cannot be read: {first_line(error)}; rows that do not fit a "
            f"table can be passed as a list: data.to_dict('records')"
        ) from error


def _messages(prompt: Any) -> Any:
    """Chat messages, if the text is JSON of such; any other text as it is."""
    if not isinstance(prompt, str) or not prompt.lstrip().startswith("["):
        return prompt
    try:
        value = json.loads(prompt)
    except ValueError:
        return prompt
    return value if is_chat(value) else prompt


def _check_cells(prompts: Sequence[Any], path: str) -> None:
    """Raise UserError for a cell that looks like chat messages but does not parse as such; it would
    silently be used as text.

    Such a cell starts with a bracket, and contains "role" early or stands beside cells that parse.
    """
    cells = [prompt.lstrip() for prompt in prompts if isinstance(prompt, str)]
    chats = any(is_chat(_messages(cell)) for cell in cells)
    for number, cell in enumerate(cells):
        bracket = cell.startswith(("[", "{"))
        meant = bracket and (chats or "role" in cell[:20])
        if meant and not is_chat(_messages(cell)):
            raise UserError(
                f"prompts: {path}, row {number}: expected messages as JSON, such as "
                f'[{{"role": "user", "content": "..."}}], found {cell[:100]}'
            )


def _check_lines(path: Path) -> None:
    """Raise UserError with the number of the first malformed line, which `datasets` omits."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:  # no JSON, or no UTF-8
                raise UserError(f"prompts: {path}, row {number}: {error}") from error
            if not isinstance(row, dict):
                raise UserError(
                    f"prompts: {path}, row {number}: expected an object, found {type(row).__name__}"
                )


def _rename(data: HuggingFaceDataset, config: Dataset.Config) -> HuggingFaceDataset:
    needed = [] if config.prompt == PROMPT else [config.prompt]
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
