"""columns: which columns of a data file hold prompts and answers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from groupwise.kit.draft import ANSWERS, Columns
from groupwise.kit.errors import UserError
from groupwise.registry import installed

PROMPTS = ("prompt", "question", "problem", "instruction", "input", "query", "caption")
"""Usual names of this column, the most common first."""
CHECKED_ROWS = 100
"""Rows whose answers may decide on the task."""


def columns(path: Path, prompt: str | None, answer: str | None) -> Columns:
    """The columns of a file; prompt, answer: their names, None to recognise them by usual names.

    Raises UserError if the file cannot be read, or if it has no such column.
    """
    dataset = installed().load("prompts", "dataset")
    # With a template the data need no column named `prompt`.
    data = dataset(dataset.Config(path=str(path), template="")).data
    names = data.column_names
    prompts = _column(path, "--prompt", prompt, PROMPTS, names)
    gold = _column(path, "--answer", answer, ANSWERS, names, required=answer is not None)
    rows = range(min(len(data), CHECKED_ROWS)) if gold else ()
    answers = [_as_text(data[row][gold]) for row in rows]
    return Columns(path=str(path), prompt=prompts, answer=gold, names=names, answers=answers)


def _as_text(value: Any) -> str:
    return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)


def _column(
    path: Path,
    option: str,
    name: str | None,
    usual: Sequence[str],
    names: Sequence[str],
    *,
    required: bool = True,
) -> str:
    """The column of this name, or the first with a usual one, in any case of letters, or the only
    one; else ""."""
    candidates = usual if name is None else (name,)
    if name is None and required and len(names) == 1:  # as of a text file
        return names[0]
    by_lower_case = {each.lower(): each for each in reversed(names)}
    for candidate in candidates:
        if candidate.lower() in by_lower_case:
            return by_lower_case[candidate.lower()]
    if not required:
        return ""
    raise UserError(
        f"{path} has no column {' or '.join(map(repr, candidates))} (its columns are "
        f"{', '.join(names)}); set {option} COLUMN"
    )
