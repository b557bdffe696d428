"""JSON files: each row is read by itself, so its values keep their types and no key is added."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from datasets import Dataset as HuggingFaceDataset
from datasets import load_dataset

from groupwise.kit import foreign_json
from groupwise.kit.errors import UserError
from groupwise_data.encoding import encoding_hint

TEXT = "text"
"""The column in which rows are kept, as JSON."""
ENCODING = "utf-8-sig"
"""UTF-8, with or without a mark at the beginning."""


class JsonRows:
    """Rows of JSON texts, parsed when they are read; None in a column that a row lacks.

    texts: the column `TEXT`; columns: by its name in the texts, the name of each column.
    """

    def __init__(self, texts: HuggingFaceDataset, columns: Mapping[str, str]) -> None:
        self.texts, self.columns = texts, columns

    @property
    def column_names(self) -> list[str]:
        return [*self.columns.values()]

    def rename_columns(self, names: Mapping[str, str]) -> Self:
        columns = {own: names.get(name, name) for own, name in self.columns.items()}
        return type(self)(self.texts, columns)

    def select(self, rows: Sequence[int]) -> Self:
        return type(self)(self.texts.select(rows), self.columns)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        row = json.loads(self.texts[index][TEXT])
        return {name: row.get(own) for own, name in self.columns.items()}


def read_json_lines(path: Path, options: Mapping[str, Any]) -> JsonRows:
    """The rows of a file with an object in each line that is not blank.

    options: further arguments of the reader "text" of `datasets`. Raises UserError with the number
    of a line that is no object.
    """
    _check_encoding(path, options.get("encoding", "utf-8"))
    options = {"encoding": ENCODING, **options}
    texts = load_dataset("text", data_files=str(path), split="train", **options)
    return rows_of(texts, str(path))


def rows_of(texts: HuggingFaceDataset, name: str) -> JsonRows:
    """The rows of the lines of files, those that are blank left out; name: of the files."""
    rows, columns = list[int](), dict[str, str]()
    for number, text in enumerate(texts[TEXT]):
        if text.strip():
            rows.append(number)
            columns |= {key: key for key in _parsed(text, f"{name}, line {number + 1}")}
    return JsonRows(texts if len(rows) == len(texts) else texts.select(rows), columns)


def read_json(path: Path, options: Mapping[str, Any]) -> JsonRows:
    """The rows of a file that is a list of objects, has one in the field that the option `field`
    names, or has an object in each line.

    options: `field` and `encoding`. Raises UserError for others, and for a row that is no object.
    """
    if unknown := {*options} - {"field", "encoding"}:
        raise UserError(
            f"prompts.options: {path} is read with field and encoding, found {min(unknown)!r}"
        )
    content, field = path.read_bytes(), options.get("field")
    try:
        encoding = options.get("encoding") or json.detect_encoding(content)
        document = foreign_json.read(content.decode(encoding))
    except ValueError as error:
        if field is None and not content.lstrip().startswith(b"["):
            return read_json_lines(path, options)
        hint = encoding_hint(path) if isinstance(error, UnicodeDecodeError) else ""
        raise UserError(f"prompts: {path}: {error}{hint}") from error
    if field is not None:
        if not isinstance(document, dict) or field not in document:
            raise UserError(f"prompts: {path} has no field {field!r} (prompts.options.field)")
        document = document[field]
    texts, columns = list[str](), dict[str, str]()
    for number, row in enumerate(document if isinstance(document, list) else [document]):
        columns |= {name: name for name in _checked(row, f"{path}, row {number}")}
        texts.append(json.dumps(row))
    return JsonRows(HuggingFaceDataset.from_dict({TEXT: texts}), columns)


def _parsed(text: str, place: str) -> dict[str, Any]:
    try:
        row = foreign_json.read(text)
    except ValueError as error:
        raise UserError(f"prompts: {place}: {error}") from error
    return _checked(row, place)


def _checked(row: Any, place: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UserError(f"prompts: {place}: expected an object, found {type(row).__name__}")
    return row


def _check_encoding(path: Path, encoding: str) -> None:
    """Raise UserError with the number of the first line that is not UTF-8."""
    if encoding.lower() not in ("utf-8", "utf8"):
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                hint = encoding_hint(path)
                raise UserError(f"prompts: {path}, line {number}: {error}{hint}") from error
