"""Ways in which rows come into a run: files of every form, and objects."""

import csv
import json
from pathlib import Path

import pytest

from groupwise.config import yaml_lines
from groupwise.registry import installed

datasets, pd = (pytest.importorskip(name) for name in ("datasets", "pandas"))
Dataset, Rows = (installed().load("prompts", name) for name in ("dataset", "rows"))


def read(path, content=None, **options):
    """All rows of a file with this content, and the notes on it."""
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        Path(path).write_bytes(data)
    source = Dataset(Dataset.Config(path=path, **options))
    return [source[index] for index in range(len(source))], source.notes


def values(rows, name="answer"):
    return [row[name] for row in rows]


def of_csv(rows):
    with Path("rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)
    return read("rows.csv")[0]


def of_folder(rows):
    Path("folder").mkdir(exist_ok=True)
    of_csv(rows)
    Path("rows.csv").rename("folder/train.csv")
    return read("folder")[0]


def of_lines(rows):
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    return read("rows.jsonl", "\n".join(lines))[0]


def of_json(rows):
    return read("rows.json", json.dumps(rows))[0]


def of_parquet(rows):
    datasets.Dataset.from_list(rows).to_parquet("rows.parquet")
    return read("rows.parquet")[0]


def of_frame(rows):
    return read(pd.DataFrame(rows))[0]


def of_yaml(rows):
    text, name = yaml_lines.write({"rows": rows}), "run.yaml"
    return Rows(Rows.Config(**yaml_lines.read(text, name)[0])).rows
