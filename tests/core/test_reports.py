"""`reports`: what writes pages into the folder of a run, as the configuration names it."""

import json

import pytest

import groupwise
from groupwise import registry as plugins
from groupwise.kit.errors import UserError
from groupwise.run.evaluate import evaluate_run


def train(lab, folder, **options):
    defaults = {
        "policy": lab.Tabular(),
        "prompts": {"name": "rows", "rows": lab.rows(8), "held_out": 0.5},
        "rewards": lab.ones,
        "train": {"steps": 1, "groups_per_step": 2, "group_size": 4},
        "output": folder / "run",
    }
    return groupwise.train(**defaults | options)


def evaluate(lab, run, *overrides, **objects):
    given = {("policy",): lab.Tabular(), ("rewards", 0): lab.ones}
    return evaluate_run(run, overrides, objects=given | objects.get("objects", {}))


def count_files(folder, title="files"):
    """Writes how many files the folder has."""
    path = folder / "count.txt"
    path.write_text(f"{title}: {len([*folder.iterdir()])}")
    return path


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_run_and_its_evaluations_have_a_page_unless_switched_off(lab, tmp_path, capsys):
    run = train(lab, tmp_path).folder
    assert f"report: {run / 'report.html'}" in capsys.readouterr().err.replace("\n", "")
    evaluated = evaluate(lab, run)
    assert evaluated.reports == [evaluated.folder / "report.html"]
    assert evaluate(lab, run, "reports=[]").reports == []

    run = train(lab, tmp_path, reports=[], overwrite=True).folder
    assert "report.html" not in names(run)
    assert "report" not in capsys.readouterr().err
    evaluated = evaluate(lab, run)
    assert evaluated.reports == []
    assert names(evaluated.folder) == {"config.yaml", "result.json", "samples"}


def test_a_run_without_the_plugin_of_the_default_report_has_no_page(
    lab, tmp_path, monkeypatch, capsys
):
    with_page = train(lab, tmp_path / "with").folder
    monkeypatch.setenv(plugins.SWITCHED_OFF, "report")
    registry = plugins.discover()
    monkeypatch.setattr(plugins, "installed", lambda: registry)
    capsys.readouterr()
    run = train(lab, tmp_path).folder
    assert names(run) == names(with_page) - {"report.html"}
    assert "report" not in capsys.readouterr().err
    assert evaluate(lab, run).reports == []
    # The default is in config.yaml; another name that nothing registers is an error.
    assert "reports:\n- name: html\n" in (run / "config.yaml").read_text()
    with pytest.raises(UserError, match="unknown report 'htm'"):
        train(lab, tmp_path, reports=["htm"], overwrite=True)


def test_a_function_may_be_a_report(lab, tmp_path, capsys):
    run = train(lab, tmp_path, reports=["html", {"name": count_files, "title": "there are"}]).folder
    assert (run / "count.txt").read_text().startswith("there are: ")
    line = f"report: {run / 'report.html'}; report: {run / 'count.txt'}"
    assert line in capsys.readouterr().err.replace("\n", "")
    assert json.loads((run / "run.json").read_text())["objects"] == ["policy", "rewards.0"]
    evaluated = evaluate(lab, run, objects={("reports", 1): count_files})
    assert [path.name for path in evaluated.reports] == ["report.html", "count.txt"]
    assert evaluated.reports[1].read_text() == "there are: 4"


def test_mistakes_in_the_report_are_errors_before_the_run(lab, tmp_path):
    for report, message in (
        ("htlm", "reports.0.name: unknown report 'htlm', did you mean 'html'"),
        ({"name": "html", "colour": "red"}, r"reports.0.colour: unknown key"),
        ({"name": "html", "folder": "elsewhere"}, r"reports.0.folder: unknown key"),
        ({"name": count_files, "titel": "x"}, "did you mean 'title'"),
        (3, "reports"),
    ):
        with pytest.raises(UserError, match=message):
            train(lab, tmp_path, reports=[report])
    assert not (tmp_path / "run").exists()
