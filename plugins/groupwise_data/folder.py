"""Folders and datasets of the hub: their cells and rows are read as those of single files."""

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset as HuggingFaceDataset
from datasets import load_dataset, load_dataset_builder
from datasets.packaged_modules.csv.csv import CsvConfig
from datasets.packaged_modules.json.json import JsonConfig

from groupwise_data.csv_file import LONGER_ROW, check_names, typed_table
from groupwise_data.json_file import ENCODING, JsonRows, rows_of

AS_TEXT = {
    "converters": dict.fromkeys(range(10_000), str),  # by number of the column
    "keep_default_na": False,
    "na_filter": False,
    "index_col": False,
}
"""As `csv_file.AS_TEXT`, in arguments that the reader of `datasets` has, too."""


def read_folder(
    path: str, subset: str | None, split: str, options: Mapping[str, Any]
) -> tuple[HuggingFaceDataset | JsonRows, list[str]]:
    """The rows of a folder or of a dataset on the hub, and notes on its columns.

    options: further arguments of `datasets.load_dataset`.
    """
    config = load_dataset_builder(path, subset, **_of_builder(options)).config
    if isinstance(config, CsvConfig):
        for file in (Path(name) for names in (config.data_files or {}).values() for name in names):
            if file.is_file():
                check_names(file, _of_reader(options))
        with warnings.catch_warnings():
            warnings.filterwarnings("error", **LONGER_ROW)
            data = load_dataset(path, subset, split=split, **{**AS_TEXT, **options})
        return typed_table({name: data[name][:] for name in data.column_names}, path)
    if isinstance(config, JsonConfig) and _has_lines(config.data_files):
        files = {"data_files": config.data_files, "encoding": ENCODING}
        return rows_of(load_dataset("text", split=split, **files, **options), path), []
    return load_dataset(path, subset, split=split, **options), []


def _of_builder(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that say what is read, not how it is loaded."""
    of_loading, of_builder = (
        inspect.signature(function).parameters for function in (load_dataset, load_dataset_builder)
    )
    others = {*of_loading} - {*of_builder}
    return {name: value for name, value in options.items() if name not in others}


def _of_reader(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that say how a CSV file is read, not where it is."""
    others = inspect.signature(load_dataset).parameters
    return {name: value for name, value in options.items() if name not in others}


def _has_lines(files: Mapping[Any, list[str]]) -> bool:
    return all(".jsonl" in name for names in files.values() for name in names)
