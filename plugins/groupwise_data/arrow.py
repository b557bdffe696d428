"""Arrow: tables of objects and files, and what Arrow and pandas have added to their rows."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset as HuggingFaceDataset
from datasets import DatasetDict

from groupwise.kit.errors import UserError, first_line


def of_object(data: Any, split: str) -> tuple[HuggingFaceDataset, list[str]]:
    """The rows of an object that was passed in Python, and notes."""
    if isinstance(data, DatasetDict):
        if split not in data:
            raise UserError(
                f"prompts: the DatasetDict has no split {split!r} (it has "
                f"{', '.join(data)}); name one with `split: NAME`, or pass one of them"
            )
        data = data[split]
    if isinstance(data, HuggingFaceDataset):
        return data, float_notes(data, "the dataset")
    try:
        table = HuggingFaceDataset.from_pandas(data, preserve_index=False)
    except Exception as error:  # of pyarrow, for columns that mix types
        raise UserError(
            f"prompts: the DataFrame cannot be read: {first_line(error)}; rows that do not fit a "
            f"table can be passed as a list: data.to_dict('records')"
        ) from error
    return table, float_notes(table, "the DataFrame")


def float_notes(table: Any, name: str) -> list[str]:
    """Notes on columns of floats that seem to be whole numbers of which some are missing; none on
    what is no table of Arrow."""
    if not isinstance(table, HuggingFaceDataset):
        return []
    return [
        f"the column {column!r} of {name} has whole numbers as floats, which rewards get as 5.0: "
        f"pandas makes them where a row has none, unless the column is `astype('Int64')`"
        for column in table.column_names
        if _has_made_floats(table.data[column])
    ]


def _has_made_floats(column: Any) -> bool:
    if not pa.types.is_floating(column.type) or not column.null_count:
        return False
    return bool(pc.all(pc.equal(pc.floor(column), column)).as_py())


def without_nulls(value: Any) -> Any:
    """The value without keys whose value is None, which Arrow adds where other rows have the key; a
    message keeps its `content`."""
    if isinstance(value, Mapping):
        return {
            name: without_nulls(inner)
            for name, inner in value.items()
            if inner is not None or (name == "content" and "role" in value)
        }
    return [*map(without_nulls, value)] if isinstance(value, list) else value
