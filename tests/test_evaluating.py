"""`groupwise eval`: evaluates a checkpoint on other prompts without changing the run."""

import json
from pathlib import Path

import pytest
import yaml
from tests import tiny_model
from tests.command_line import call

from groupwise.kit.metric_names import titled
from groupwise.storage.samples import read_samples

OTHER = ["evaluation.source.name=dataset", "evaluation.source.path=other.csv"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with two sets of prompts, and a run of a single step on one of them."""
    home = tmp_path_factory.mktemp("evaluating")
    rows = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(20)]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"{n} - 1 =,{n - 1}" for n in range(5)]
    (home / "other.csv").write_text("\n".join(["prompt,answer", *lines]) + "\n")
    (home / "unlabelled.csv").write_text("prompt\n1 + 1 =\n")
    config = {
        "output": str(home / "run"),
        "policy": {
            "name": "language_model",
            "model": str(tiny_model.folder()),
            "max_new_tokens": 3,
        },
        "prompts": {"name": "dataset", "path": "rows.jsonl", "held_out": 0.3},
        "rewards": [{"name": "numeric_answer"}],
        "train": {"steps": 1, "groups_per_step": 1, "group_size": 2},
        "evaluation": {"prompts": 1, "greedy": False},
    }
    (home / "run.yaml").write_text(yaml.safe_dump(config))
    result = call("train", home / "run.yaml", "--quiet")
    assert result.exit_code == 0, result.output
    return home


@pytest.fixture
def run(home, monkeypatch):
    monkeypatch.chdir(home)
    return home / "run"


def contents(run):
    """The bytes of every file that the run wrote."""
    paths = [path for path in run.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in paths if "evaluations" not in path.parts}


def test_an_evaluation_on_other_prompts_has_its_own_folder_and_changes_no_file_of_the_run(run):
    before = contents(run)
    result = call("eval", run, *OTHER, "evaluation.prompts=5", "evaluation.samples=2")
    assert result.exit_code == 0, result.output
    folder = run / "evaluations" / "step_1"
    assert f"report: {folder / 'report.html'}" in result.stderr.replace("\n", "")
    assert contents(run) == before

    record = json.loads((folder / "result.json").read_text())
    assert (record["run"], record["step"], record["prompts"]) == ("run", 1, "other.csv")
    printed = [line.rpartition("  ") for line in result.stdout.splitlines()]
    assert [
        (titled(name, record["accuracy"]), f"{x:.4g}") for name, x in record["metrics"].items()
    ] == [(name.strip(), value) for name, _, value in printed]
    assert "accuracy (" in result.stdout
    samples = read_samples(folder / "samples" / "evaluation.jsonl")
    assert {sample["prompt"] for sample in samples} == {f"{n} - 1 =" for n in range(5)}
    assert len(samples) == 10
    written = yaml.safe_load((folder / "config.yaml").read_text())
    assert written["evaluation"]["source"]["path"] == "other.csv"
    page = (folder / "report.html").read_text()
    assert "5 prompts · from other.csv" in page
    assert "3 - 1 =" in page
    assert "→" not in page.partition("<details>")[0]

    again = call("eval", run)
    assert again.exit_code == 0, again.output
    assert (run / "evaluations" / "step_1_2" / "report.html").exists()


def test_an_existing_folder_is_refused_and_not_changed(run, tmp_path):
    folder = tmp_path / "mine"
    result = call("eval", run, "--output", folder)
    assert result.exit_code == 0, result.output
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = call("eval", run, "--output", folder)
    assert result.exit_code == 2
    assert f"{folder} exists; choose another folder by --output" in result.stderr.replace("\n", "")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["evaluation.prompts=0"], "there is nothing to evaluate"),
        ([*OTHER, "evaluation.prompts=9"], "but only 5 of 5 rows"),
        (
            ["evaluation.source.name=dataset", "evaluation.source.path=unlabelled.csv"],
            "needs the column 'answer'",
        ),
    ],
)
def test_mistakes_leave_no_folder(run, tmp_path, overrides, message):
    result = call("eval", run, "--output", tmp_path / "none", *overrides)
    assert result.exit_code == 2, result.output
    assert message in result.stderr.replace("\n", " ")
    assert not (tmp_path / "none").exists()


def test_check_reports_columns_that_the_evaluation_prompts_lack(run):
    Path("own_rewards.py").write_text("def right(completions, answer):\n    return answer\n")
    line = ("evaluation.source.name=dataset", "evaluation.source.path=unlabelled.csv")
    result = call("check", "run.yaml", "rewards=[own_rewards:right]", *line)
    assert result.exit_code == 2
    text = " ".join(result.stderr.split())
    assert (
        "evaluation.source: reward 'right' needs the column 'answer'; the dataset has none" in text
    )
    result = call(
        "check", "run.yaml", "rewards=[own_rewards:right]", "prompts.columns.answer=x", *line
    )
    assert "prompts: reward 'right' needs the column 'answer'" in " ".join(result.stderr.split())
