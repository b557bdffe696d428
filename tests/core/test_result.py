"""RunResult: the files of a run as tables, in a notebook, and as a figure."""

import json

import pytest

import groupwise
from groupwise.kit.errors import UserError
from groupwise.recording.table import Table


@pytest.fixture
def result(lab, tmp_path):
    return groupwise.train(
        policy=lab.Tabular(),
        prompts={"name": "rows", "rows": lab.rows(), "held_out": 0.4},
        rewards=[lab.ones],
        evaluation={"prompts": 2, "every": 1},
        train={"steps": 2, "groups_per_step": 2, "group_size": 4},
        output=tmp_path / "run",
        quiet=True,
    )


def lines(result, name):
    return [json.loads(line) for line in (result.folder / name).read_text().splitlines()]


def test_tables_are_the_files(result):
    assert [row["step"] for row in result.metrics] == [0, 1, 2]
    merged = {}
    for line in lines(result, "metrics.jsonl"):
        merged.setdefault(line["step"], {}).update(line)
    assert [*result.metrics] == [*merged.values()]
    assert result.metrics[-1]["evaluation/reward"] == result.after["reward"]
    assert result.metrics["reward"][0] is None
    assert result.metrics[1:]["reward"] == [merged[1]["reward"], merged[2]["reward"]]
    with pytest.raises(KeyError, match="no column 'rewrad'; there are step"):
        result.metrics["rewrad"]
    assert [*result.samples_before] == lines(result, "samples/before.jsonl")
    assert [*result.samples] == lines(result, "samples/after.jsonl")
    assert [*result.training_samples] == lines(result, "samples/training.jsonl")


def test_a_missing_metric_of_an_evaluation_says_what_there_is(result):
    with pytest.raises(KeyError, match=r"no metric 'rewrad': there are .*reward"):
        result.after["rewrad"]
    with pytest.raises(KeyError, match=r"'accuracy': evaluation\.accuracy names the reward"):
        result.before["accuracy"]
    assert result.after.get("accuracy") is None


def test_a_table_becomes_a_frame_of_pandas(result):
    pytest.importorskip("pandas")
    frame = result.metrics.to_pandas()
    assert frame["step"].tolist() == [0, 1, 2]
    assert frame["reward"].tolist()[1:] == result.metrics["reward"][1:]


def test_a_result_is_a_line_and_html_is_escaped(result):
    said = repr(result)
    assert said.startswith("<RunResult of 2 steps, reward ")
    assert len(said) < 200
    assert "<td>reward</td>" in result._repr_html_()
    assert "&lt;RunResult" in result._repr_html_()
    table = Table([{"completion": "<script>" + "x" * 999, "n": 1.23456}])
    shown = table._repr_html_()
    assert "<script>" not in shown
    assert "1.235" in shown
    assert len(shown) < 600


def test_metrics_are_plotted(result):
    pytest.importorskip("matplotlib")
    figure = result.plot()
    assert [axes.get_title() for axes in figure.axes] == ["reward", "evaluation/reward", "length"]
    (line,) = figure.axes[0].lines
    assert [*line.get_xdata()] == [1, 2]
    assert [*line.get_ydata()] == result.metrics["reward"][1:]
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UserError, match=r"no metric 'rewrad'; there are"):
        result.plot("rewrad")
