"""Table: rows of a run's files, as Python and notebooks show them."""

import html
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from groupwise.kit.errors import UserError

SHOWN = 10
"""Rows of a table that a notebook shows: the first and the last ones."""
COLUMNS = 12
"""Columns of it, the first ones."""
LONGEST = 300
"""Characters of a cell."""


class Table(list[dict[str, Any]]):
    """A list of rows, each a dict; `pandas.DataFrame(table)` and `to_pandas()` make it a DataFrame.

    `table["reward"]` is a column, with None where a row has no such value.
    """

    @property
    def columns(self) -> list[str]:
        """The names in any row, in the order in which they appear."""
        return [*dict.fromkeys(name for row in self for name in row)]

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            rows = super().__getitem__(key)
            return Table(rows) if isinstance(key, slice) else rows
        if key not in self.columns:
            raise KeyError(f"no column {key!r}; there are {', '.join(self.columns)}")
        return [row.get(key) for row in self]

    def to_pandas(self) -> Any:
        """A DataFrame. Raises UserError where pandas is not installed."""
        try:
            import pandas as pd  # an extra, and slow to import
        except ImportError as error:
            raise UserError(f"to_pandas needs pandas: pip install pandas ({error})") from error
        return pd.DataFrame(self)

    def __repr__(self) -> str:
        return f"<Table of {len(self):,} rows: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        names = self.columns
        half = SHOWN // 2
        rows = [*self] if len(self) <= SHOWN else [*self[:half], *self[-half:]]
        return (
            f"{table_of(names[:COLUMNS], [[row.get(n) for n in names] for row in rows])}"
            f"<p>{len(self):,} rows, {len(names)} columns</p>"
        )


def table_of(names: list[str], rows: list[list[Any]]) -> str:
    """Rows as a table in HTML, with as many cells as there are names."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = "".join(
        f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row[: len(names)])}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if callable(getattr(value, "_repr_html_", None)):  # as videos have it
        return str(value._repr_html_())
    if callable(getattr(value, "_repr_png_", None)):  # as pictures have it
        return f'<img src="data:image/png;base64,{b64encode(value._repr_png_()).decode()}">'
    text = f"{value:.4g}" if isinstance(value, float) else _said(value)
    return html.escape(
        text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
    )


def _said(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(part, Mapping) for part in value):
        return "\n".join(f"{part.get('role', '')}: {part.get('content', '')}" for part in value)
    return str(value)
