"""CSV files: cells keep their text; a column is typed only if that loses nothing."""

import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset as HuggingFaceDataset
from pandas.errors import ParserError, ParserWarning

from groupwise.kit import foreign_json
from groupwise.kit.errors import UserError
from groupwise.prompt_source import is_chat

AS_TEXT = {"dtype": str, "keep_default_na": False, "na_filter": False, "index_col": False}
"""Arguments of `pandas.read_csv` by which a cell is its text, and no column an index."""
LONGER_ROW: Any = {"message": "Length of header", "category": ParserWarning}
"""The warning of `pandas` that it drops cells for which there is no column."""
NAMES = {"delimiter": "sep", "column_names": "names"}
"""Names of its arguments by those that `datasets` has for them."""
DELIMITERS = (";", "\t", "|")
WIDEST = 2**63
"""One more than the largest integer in a column of integers."""
TYPED_ELSEWHERE = re.compile(
    r"(?i)\s*([-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?inf|nan|true|false|na|n/a|none|null)\s*"
)
"""Cells that usual readers take for a number, a boolean or a missing value."""


def read_csv(path: Path, options: Mapping[str, Any]) -> tuple[HuggingFaceDataset, list[str]]:
    """The table of a file, and notes on its columns; an empty cell is None.

    options: further arguments of `pandas.read_csv`. Raises UserError for a row with more cells than
    the header, with its line, for a file with another delimiter, and for two columns of one name.
    """
    own = _of_pandas(path, options)
    frame = _frame(path, own)
    _check_delimiter(path, frame, own["sep"])
    check_names(path, options)
    return typed_table({str(name): [*series] for name, series in frame.items()}, str(path))


def _of_pandas(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    own = {NAMES.get(name, name): value for name, value in options.items()}
    return {"sep": "\t" if path.suffix == ".tsv" else ",", **AS_TEXT, **own}


def typed_table(
    columns: Mapping[str, Sequence[Any]], name: str
) -> tuple[HuggingFaceDataset, list[str]]:
    """The table of columns of cells, and notes on those that stay text; name: of their file."""
    table, notes = dict[str, list[Any]](), list[str]()
    for column, own in columns.items():
        cells = [None if cell == "" or pd.isna(cell) else cell for cell in own]
        table[column], refused = typed(cells)
        if refused is not None:
            notes.append(
                f"the column {column!r} of {name} stays text, and rewards get strings: no type "
                f"writes all of its cells as the file does (row {refused}: {cells[refused]!r:.40})"
            )
    return HuggingFaceDataset.from_dict(table), notes


def typed(cells: list[Any]) -> tuple[list[Any], int | None]:
    """The cells as integers, as floats or as booleans if all are written as `str` writes these.

    Else the cells themselves, and the row that no type fits, or None if they are plainly text.
    """
    rows = [row for row, cell in enumerate(cells) if cell is not None]
    if not all(isinstance(cells[row], str) for row in rows):  # of a reader's option
        return cells, None
    refused = [_first_refused(kind, cells, rows) for kind in KINDS]
    for kind, row in zip(KINDS, refused, strict=True):
        if row is None and rows:
            return [None if cell is None else kind(cell) for cell in cells], None
    is_text = not all(TYPED_ELSEWHERE.fullmatch(cells[row]) for row in rows)
    return cells, None if is_text else max(
        (row for row in refused if row is not None), default=None
    )


def _first_refused(kind: "Kind", cells: Sequence[str], rows: Sequence[int]) -> int | None:
    return next((row for row in rows if not _is_written(kind, cells[row])), None)


def _is_written(kind: "Kind", text: str) -> bool:
    """Whether the value of this type that a text states is written as this text."""
    try:
        return str(kind(text)) == text
    except ValueError:
        return False


def _integer(text: str) -> int:
    value = int(text)
    if abs(value) >= WIDEST:
        raise ValueError(f"expected at most 63 bits, found {text}")
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):  # a word, as "nan"
        raise ValueError(f"expected a number, found {text}")
    return value


def _boolean(text: str) -> bool:
    return text == "True"


Kind = Callable[[str], int | float | bool]
KINDS: Sequence[Kind] = (_integer, _float, _boolean)


def _frame(path: Path, options: Mapping[str, Any]) -> pd.DataFrame:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", **LONGER_ROW)
            return pd.read_csv(path, **options)
    except ParserWarning as warning:
        problem = _longer_row(path, options) or str(warning)
        raise UserError(_problem(path, problem)) from warning
    except ParserError as error:
        raise UserError(_problem(path, str(error))) from error


def _longer_row(path: Path, options: Mapping[str, Any]) -> str | None:
    """Which line has more cells than the header: `pandas` says so of a table without a header."""
    try:
        pd.read_csv(path, **{**options, "header": None, "names": None})
    except ParserError as error:
        return str(error)
    return None


def _problem(path: Path, problem: str) -> str:
    words = problem.removeprefix("Error tokenizing data. C error: ").strip()
    with path.open("rb") as lines:
        header = lines.readline()
    other = [each for each in DELIMITERS if each.encode() in header]
    return (
        f"prompts: {path}: {words}; a cell that holds a comma or a line break must be in quotes"
        f"{_delimiter_hint(other[0]) if other else ''}"
    )


def _check_delimiter(path: Path, frame: pd.DataFrame, used: str) -> None:
    """Raise UserError if the only column is several, divided by another delimiter."""
    if len(frame.columns) != 1 or not len(frame):
        return
    name, cell = str(frame.columns[0]), str(frame.iloc[0, 0])
    for other in DELIMITERS:
        if other != used and 0 < name.count(other) == cell.count(other):
            raise UserError(f"prompts: {path} has one column, {name!r:.80}{_delimiter_hint(other)}")


def check_names(path: Path, options: Mapping[str, Any]) -> None:
    """Raise UserError for two columns of one name, of which pandas would rename the second.

    options: as of `read_csv`.
    """
    own = _of_pandas(path, options)
    if not {"header", "names"}.isdisjoint(own):
        return
    names = Counter(pd.read_csv(path, **{**own, "header": None, "nrows": 1}).iloc[0])
    for name, count in names.items():
        if name and count > 1:
            raise UserError(
                f"prompts: {path} has {count} columns of the name {name!r}; rename all but one"
            )


def _delimiter_hint(delimiter: str) -> str:
    return (
        f"; if its columns are divided by {delimiter!r}, set prompts.options: "
        f"{{delimiter: {json.dumps(delimiter)}}}"
    )


def messages_of(prompt: Any) -> Any:
    """Chat messages, if the text is JSON of such; any other text as it is."""
    if not isinstance(prompt, str) or not prompt.lstrip().startswith("["):
        return prompt
    try:
        value = foreign_json.read(prompt)
    except ValueError:
        return prompt
    return value if is_chat(value) else prompt


def check_messages(prompts: Sequence[Any], path: str) -> None:
    """Raise UserError for a cell that looks like chat messages but does not parse as such; it would
    silently be used as text.

    Such a cell starts with a bracket, and contains "role" early or stands beside cells that parse.
    """
    cells = [prompt.lstrip() for prompt in prompts if isinstance(prompt, str)]
    chats = any(is_chat(messages_of(cell)) for cell in cells)
    for number, cell in enumerate(cells):
        bracket = cell.startswith(("[", "{"))
        meant = bracket and (chats or "role" in cell[:20])
        if meant and not is_chat(messages_of(cell)):
            raise UserError(
                f"prompts: {path}, row {number}: expected messages as JSON, such as "
                f'[{{"role": "user", "content": "..."}}], found {cell[:100]}'
            )
