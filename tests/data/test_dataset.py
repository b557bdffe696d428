"""Data sets: cells and texts are what their file says, whatever its form."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.command_line import call
from tests.ways import (
    of_csv,
    of_folder,
    of_frame,
    of_json,
    of_lines,
    of_parquet,
    of_yaml,
    read,
    values,
)

from groupwise.kit.errors import UserError
from groupwise_verifiable.columns import gold_text


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


SEEMING = (
    *(
        "true",
        "True",
        "FALSE",
        "yes",
        "NA",
        "None",
        "null",
        "nan",
        "NaN",
        "inf",
        "-",
        "N/A",
        "#N/A",
    ),
    *("5", "02113", "+5", "-0", "5.0", "5.", ".5", "1e5", "1_000", "1,000", "0x1F", "010", "1:30"),
    *("9" * 25, str(2**63), str(-(2**63)), "0." + "3" * 30, "1/2", "2024-01-01", "12:00", "٣"),
    *('["3"]', "[3]", '{"a": 1}', "[" * 300, '"', '""', "'", "a;b", "a\tb", "a\nb", "a\r\nb", "~"),
    *("<<", "=", "!x", "&a", "*a", "- a", "a: b", "#", "%", "@", "`", "\\", "\u2028", "\x85", "é"),
)
"""Texts that some reader takes for something else."""
TEXTS = st.sampled_from(SEEMING) | st.text(st.characters(exclude_categories=("Cs", "Cc")))
TABLES = st.lists(TEXTS, min_size=1, max_size=6) | st.lists(
    st.integers().map(str) | st.sampled_from(SEEMING[:20]), min_size=1, max_size=6
)


WAYS = (of_csv, of_json, of_lines, of_frame, of_yaml, of_parquet, of_folder)


@pytest.mark.parametrize("way", WAYS)
def test_each_text_that_looks_like_something_else_stays_itself(way):
    """Alone in its column, in which its neighbours cannot save it."""
    rows = [{"prompt": "p", **{f"c{n}": text for n, text in enumerate(SEEMING)}}] * 2
    (row, _) = way(rows)
    stated = {text: gold_text(row[f"c{n}"]) or "" for n, text in enumerate(SEEMING)}
    assert stated == {text: text.strip() for text in SEEMING}


@pytest.mark.parametrize("way", [of_csv, of_json, of_frame, of_yaml])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(texts=TABLES)
def test_gold_is_the_text_of_the_file(way, texts):
    rows = way([{"prompt": f"p{n}", "answer": text} for n, text in enumerate(texts)])
    assert [gold_text(row["answer"]) or "" for row in rows] == [text.strip() for text in texts]


# ---- cells


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("5 -3 0", [5, -3, 0]),
        ("0.5 1.0 -2.25", [0.5, 1.0, -2.25]),
        ("True False True", [True, False, True]),
        ("5 _ 7", [5, None, 7]),
        (f"5 {2**63 - 1}", [5, 2**63 - 1]),
    ],
)
def test_a_column_is_typed_where_every_cell_returns_to_its_text(cells, expected):
    lines = [f"p,{cell.replace('_', '')}" for cell in cells.split()]
    rows, notes = read("a.csv", "\n".join(["prompt,answer", *lines]))
    assert values(rows) == expected
    assert [type(value) for value in values(rows)] == [type(value) for value in expected]
    assert not notes


@pytest.mark.parametrize(
    ("cells", "row"),
    [
        ("5 02113", 1),
        ("true false", 0),
        ("5 2.5", 1),
        ("5 7 NA", 2),
        (f"5 {2**63}", 1),
        ("1.10 2", 0),
        ("_ TRUE", 1),
    ],
)
def test_a_column_that_other_readers_would_type_stays_text_with_a_note(cells, row):
    cells = cells.replace("_", "").split(" ")
    rows, (note,) = read("a.csv", "\n".join(["prompt,answer", *(f"p,{cell}" for cell in cells)]))
    assert values(rows) == [cell or None for cell in cells]
    assert "the column 'answer' of a.csv stays text, and rewards get strings" in note
    assert f"(row {row}: {cells[row]!r})" in note


def test_a_column_of_words_gets_no_note():
    rows, notes = read("a.csv", "prompt,answer\np,NA\np,DE\np,7\n")
    assert (values(rows), notes) == (["NA", "DE", "7"], [])


def test_a_prompt_of_digits_is_a_text():
    assert values(read("a.csv", "prompt,answer\n12,4\n07,5\n")[0], "prompt") == ["12", "07"]
    assert values(read("a.csv", "prompt,answer\n12,4\n7,5\n")[0], "prompt") == ["12", "7"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("a,b\n1,2,3\n", 2),
        ("a,b\n1,2\n1,2,3\n", 3),
        ('a,b\n"1,5",2\n1,5,2\n', 3),
        ("a,b\n1,2,3\n4,5,6\n", 2),
        ("a,b\n1,2,\n3,4,\n", 2),
    ],
)
def test_a_row_with_a_cell_too_many_is_named(content, line):
    with pytest.raises(UserError, match=rf"a\.csv: Expected 2 fields in line {line}, saw 3"):
        read("a.csv", content, prompt="a")
    Path("folder").mkdir()
    Path("folder/train.csv").write_text(content)
    if ",\n" in content:  # nothing is lost, and nothing shifted
        assert values(read("folder", prompt="a")[0], "b") == [2, 4]
        return
    with pytest.raises(UserError, match=r"cannot read folder: .*(saw 3|Length of header)"):
        read("folder", prompt="a")


def test_two_columns_of_one_name_are_refused():
    """pandas renames the second one, and a reward would read the first."""
    for content, options in (
        ("prompt,answer,answer\nWhat?,5,6\n", {}),
        ("# a comment\nanswer,prompt,answer\n5,What?,6\n", {"comment": "#"}),
    ):
        with pytest.raises(UserError, match=r"a\.csv has 2 columns of the name 'answer'"):
            read("a.csv", content, options=options)
    Path("folder").mkdir()
    Path("folder/train.csv").write_text("prompt,answer,answer\nWhat?,5,6\n")
    with pytest.raises(UserError, match=r"train\.csv has 2 columns of the name 'answer'"):
        read("folder")
    names = {"names": ["prompt", "answer", "other"], "header": 0}
    assert values(read("a.csv", "prompt,answer,answer\nWhat?,5,6\n", options=names)[0]) == [5]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_another_delimiter_is_named(delimiter):
    content = f"prompt{delimiter}answer\nWhat?{delimiter}5\n"
    stated = json.dumps(delimiter)
    with pytest.raises(UserError) as error:
        read("a.csv", content)
    assert f"set prompts.options: {{delimiter: {stated}}}" in str(error.value)
    assert values(read("a.csv", options={"delimiter": delimiter})[0]) == [5]
    with pytest.raises(UserError) as error:
        read("a.csv", content.replace("What?", "Well, what, now?"))
    assert f"set prompts.options: {{delimiter: {stated}}}" in str(error.value)


def test_a_tsv_file_is_divided_by_tabs():
    assert values(read("a.tsv", "prompt\tanswer\na, b\t5\n")[0]) == [5]


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252"])
@pytest.mark.parametrize(
    ("path", "content", "column"),
    [
        ("a.csv", "prompt,answer\nGröße?,5\n", "prompt"),
        ("a.jsonl", '{"prompt": "Größe?"}\n', "prompt"),
        ("a.txt", "Größe?\n", "text"),
    ],
)
def test_another_encoding_is_named(path, content, column, encoding):
    with pytest.raises(UserError, match=rf"expected UTF-8\. If it is {encoding}, set prompts\.opt"):
        read(path, content.encode(encoding), prompt=column)
    rows, _ = read(path, options={"encoding": encoding}, prompt=column)
    assert values(rows, column) == ["Größe?"]
    if path != "a.txt":
        assert values(read(path, content.encode("utf-8-sig"))[0], column) == ["Größe?"]


def test_a_json_file_has_an_encoding_of_unicode():
    rows = [{"prompt": "Größe?"}]
    content = json.dumps(rows, ensure_ascii=False)
    for encoding in ("utf-8-sig", "utf-16"):  # known from the first bytes
        assert read("a.json", content.encode(encoding))[0] == rows
    with pytest.raises(UserError, match=r"expected UTF-8\. If it is cp1252"):
        read("a.json", content.encode("cp1252"))
    assert read("a.json", options={"encoding": "cp1252"})[0] == rows
    with pytest.raises(UserError, match=r"read with field and encoding, found 'features'"):
        read("a.json", options={"features": {}})


def test_a_part_of_a_file_is_read():
    lines = "\n".join(json.dumps({"prompt": "p", "answer": n}) for n in range(10))
    for path, content in (
        ("a.jsonl", lines.replace("\n", "\n\n")),
        ("a.json", f"[{lines}]".replace("\n", ",")),
        ("b.json", lines),
        ("a.csv", "prompt,answer\n" + "\n".join(f"p,{n}" for n in range(10))),
    ):
        assert values(read(path, content)[0]) == [*range(10)]
        assert values(read(path, split="train[:2]+train[90%:]")[0]) == [0, 1, 9]
        with pytest.raises(UserError, match='Unknown split "test"'):
            read(path, split="test")


# ---- in a run


def test_check_shows_the_notes_on_a_file(lab, folder):
    (folder / "ones_of_zips.py").write_text(
        "def one(completions):\n    return [1.0] * len(completions)\n"
    )
    (folder / "rows.csv").write_text("prompt,zip\n" + "".join(f"p{n},0211{n}\n" for n in range(9)))
    (folder / "run.yaml").write_text(
        "policy: tests.core.conftest:Tabular\nprompts: {name: dataset, path: rows.csv}\n"
        "rewards: ['ones_of_zips:one']\nevaluation: {prompts: 0}\n"
    )
    result = call("check", "run.yaml")
    assert "note: the column 'zip' of rows.csv stays text" in " ".join(result.output.split())
