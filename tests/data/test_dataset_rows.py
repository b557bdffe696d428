"""Rows of data sets: values of JSON and of Arrow, and what is nested too deeply."""

import json
from pathlib import Path

import pytest
from tests import ways
from tests.ways import of_csv, of_frame, of_json, of_lines, of_parquet, read, values

from groupwise.kit.errors import UserError
from groupwise.prompts.identity import identity


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


# ---- JSON


def test_a_row_of_json_keeps_its_own_values():
    """Whatever other rows hold in the same column."""
    values_ = [2**80, "x", True, None, [1, "a"], {"a": 1}, {"b": {"c": []}}, 0.1, 5, "2024-01-01"]
    own = [{"prompt": "p", "answer": value} for value in values_]
    assert values(of_lines(own)) == values(of_json(own)) == values_
    Path("folder").mkdir()
    Path("rows.jsonl").rename("folder/train.jsonl")
    assert values(read("folder")[0]) == values_


def test_a_field_of_a_json_file_may_have_the_rows():
    rows = [{"prompt": "p", "answer": 5}]
    content = json.dumps({"version": 1, "data": rows})
    assert read("a.json", content, options={"field": "data"})[0] == rows
    with pytest.raises(UserError, match=r"a\.json has no field 'rows'"):
        read("a.json", options={"field": "rows"})


@pytest.mark.parametrize("depth", [101, 500, 990, 5_000, 200_000])
@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_deep_nesting_is_refused_with_its_row(depth, pair):
    opening, closing = pair if pair == "[]" else ('{"a":', "}")
    deep = f'{{"prompt": "p", "answer": {opening * depth}1{closing * depth}}}'
    for path, content, place in (
        ("a.jsonl", f'{{"prompt": "p"}}\n{deep}\n', r"a\.jsonl, line 2"),
        ("a.json", f'[{{"prompt": "p"}}, {deep}]', r"a\.json(, row 1)?"),
    ):
        with pytest.raises(UserError, match=f"prompts: {place}: .* nested more than 100 times"):
            read(path, content)


def test_nesting_up_to_the_limit_is_usable():
    """By what compares and copies rows."""
    (row,) = of_lines([{"prompt": "p", "answer": json.loads("[" * 99 + "]" * 99)}])
    assert identity(row)


@pytest.mark.parametrize("depth", [5_000, 200_000])
def test_a_cell_of_brackets_is_a_text(depth):
    (row,) = of_csv([{"prompt": "[" * depth, "answer": "1"}])
    assert row["prompt"] == "[" * depth


def test_deep_rows_from_python_have_an_error():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UserError, match="nested too deeply"):
        identity({"prompt": "p", "more": deep})


# ---- Arrow


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", **more}}}
    for name, more in (
        ("add", {"properties": {"a": {"type": "number"}}}),
        ("say", {"properties": {"text": {"type": "string"}}, "required": ["text"]}),
    )
]
MESSAGES = [
    {"role": "user", "content": "Go."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
    },
    {"role": "tool", "name": "add", "content": "1"},
]
CALLED = [
    {"prompt": MESSAGES, "tools": TOOLS[:1], "answer": "1"},
    {"prompt": MESSAGES[:1], "tools": TOOLS, "answer": "2"},
]


@pytest.mark.parametrize("way", [of_parquet, of_lines, of_json, of_frame])
def test_the_model_reads_tools_and_arguments_without_nulls_of_other_rows(way):
    rows = way(CALLED)
    assert [{name: row[name] for name in ("prompt", "tools")} for row in rows] == [
        {name: row[name] for name in ("prompt", "tools")} for row in CALLED
    ]


def test_floats_that_pandas_made_of_whole_numbers_get_a_note():
    rows = [{"prompt": "p", "answer": 5}, {"prompt": "p", "answer": None}]
    frame = ways.pd.DataFrame(rows)
    assert frame["answer"].dtype == float
    (_, (note,)) = read(frame)
    assert "the column 'answer' of the DataFrame has whole numbers as floats" in note
    read_rows, notes = read(frame.astype({"answer": "Int64"}))
    assert (values(read_rows), notes) == ([5, None], [])
    frame.to_parquet("a.parquet")
    assert "of a.parquet has whole numbers as floats" in read("a.parquet")[1][0]
    assert read(ways.pd.DataFrame([{"prompt": "p", "answer": 5.0}]))[1] == []
