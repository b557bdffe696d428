"""The report of several runs: results, differences of configuration, common charts."""

import json
import os
import re
from pathlib import Path

import pytest
from tests.command_line import call

from groupwise_report.differences import EN_DASH
from groupwise_report.several import labels
from groupwise_report.writing import write_comparison, write_report

CONFIG = """output: runs/{name}
seed: {seed}
policy: {{name: language_model, model: m, hf_token: secret-of-{name}}}
rewards: [{{name: correct, weight: 1.0}}{more}]
train: {{steps: 4, learning_rate: null}}
"""


def write(folder: Path, *, seed=0, more="", steps=4, result=True, label="", scale=1.0) -> Path:
    """Writes a run; label: prefix of a metric of one policy; more: text after the first reward."""
    folder.mkdir(parents=True)
    rows = [{"step": 0, "evaluation/accuracy": 0.2, "evaluation/prompts": 100}]
    for step in range(1, steps + 1):
        own = {f"{label}kl": 0.1 * step, "reward": scale * step / 4, "time/sample": 2.0}
        rows.append({"step": step, "accuracy": 0.2 * step, "time/update": 1.0, **own})
    lines = "".join(json.dumps(row) + "\n" for row in rows[: steps and None])
    (folder / "metrics.jsonl").write_text(lines)
    (folder / "config.yaml").write_text(CONFIG.format(name=folder.name, seed=seed, more=more))
    if result:
        sides = {"before": {"accuracy": 0.2}, "after": {"accuracy": 0.8}}
        content = {**sides, "steps": steps, "seconds": 90}
        (folder / "result.json").write_text(json.dumps(content))
    return folder


def page(runs, **options) -> str:
    return write_comparison(runs, **options).read_text(encoding="utf-8")


def table(html: str, heading: str) -> list[list[str]]:
    """The rows of a section's first table, as text."""
    section = html.split(f"<h2>{heading}</h2>")[1].split("</section>", maxsplit=1)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section)
    cells = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in rows]
    return [[re.sub("<.*?>", "", cell) for cell in row] for row in cells]


def figure(html: str, title: str) -> str:
    return html.split(f"<h3>{title}</h3>")[1].split("</figure>", maxsplit=1)[0]


def test_each_run_has_a_row_and_a_colour_in_all_charts(tmp_path):
    runs = [write(tmp_path / "a"), write(tmp_path / "b", scale=0.5), write(tmp_path / "c")]
    html = page(runs)
    head, *rows = table(html, "Before and after")
    assert head == ["run", "steps", "time", "accuracy, sampled"]
    assert rows[1] == [
        "b",
        "4 steps",
        "1 min 30 s",
        f"20.0 % → 80.0 %13{EN_DASH}29 → 71{EN_DASH}87",
    ]
    rewards = figure(html, "Reward, in training")
    assert re.findall(r'<i class="key (c\d)"></i><span>(\w)</span> <b>([\d.]+)', rewards) == [
        ("c0", "a", "1"), ("c1", "b", "0.5"), ("c2", "c", "1")
    ]  # fmt: skip
    assert re.findall(r'path class="line (c\d)"', rewards) == ["c0", "c1", "c2"]
    assert "a: 3 at step 1, 3 at step 4" in html  # both phases of a step
    assert html.count("<main") == html.count("<script") == 1


def test_only_keys_that_differ_are_shown_and_no_secrets(tmp_path):
    more = ", {name: format, weight: 0.5}"
    html = page([write(tmp_path / "a"), write(tmp_path / "b", seed=7, more=more)])
    assert table(html, "What differs") == [
        ["key", "a", "b"],
        ["seed", "0", "7"],
        ["rewards.1.name", EN_DASH, "format"],
        ["rewards.1.weight", EN_DASH, "0.5"],
    ]
    assert "secret-of" not in html
    equal = page([write(tmp_path / "x" / "c"), write(tmp_path / "x" / "d")])
    assert "All keys are the same." in equal


def test_runs_of_other_kinds_and_runs_without_steps_may_be_compared(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "run.json").write_text("{}")
    not_begun = write(tmp_path / "unbegun", steps=0, result=False)
    pool = write(tmp_path / "pool", label="writer/", steps=3)
    pool.joinpath("config.yaml").write_text("players: [{label: writer}, {label: painter}]\n")
    html = page([write(tmp_path / "one"), empty, pool, not_begun])
    rows = table(html, "Before and after")
    assert [row[:2] for row in rows[1:]] == [
        ["one", "4 steps"], ["empty", "no step yet"], ["pool", "3 steps"],
        ["unbegun", "no step yet"],
    ]  # fmt: skip
    assert "empty has no configuration yet." in re.sub("<.*?>", "", html)
    kl = figure(html, "KL")
    assert re.findall(r'class="line (c\d)"', kl) == ["c0", "c2"]
    assert "<span>pool · writer</span>" in kl
    without_steps = page([empty, not_begun], path=tmp_path / "nothing.html")
    assert "<figure" not in without_steps


def test_curves_beyond_the_number_of_colours_are_dashed(tmp_path):
    html = page([write(tmp_path / f"r{n}") for n in range(8)])
    styles = re.findall(r'class="line (.*?)"', figure(html, "Reward, in training"))
    assert styles == ["c0", "c1", "c2", "c3", "c4", "c5", "c0 dashed1", "c1 dashed1"]


def test_a_short_run_is_smoothed_if_another_one_is_long(tmp_path):
    html = page([write(tmp_path / "long", steps=90), write(tmp_path / "short", steps=5)])
    assert len(re.findall('class="raw', figure(html, "Reward, in training"))) == 2


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["x/a", "y/b"], ["a", "b"]),
        (["x/seed0/first", "x/seed1/first"], ["seed0", "seed1"]),
        (["x/a/run", "x/b/c/run", "x/d/run"], ["a", "b/c", "d"]),
        (["a/run", "a/b/run/run"], ["run", "b/run/run"]),
    ],
)
def test_runs_of_the_same_name_are_labelled_by_the_folder_that_differs(tmp_path, paths, expected):
    assert labels([tmp_path / path for path in paths]) == expected


# ---- the command


def report(*arguments: object):
    return call("report", *arguments)


def test_the_command_writes_a_page_for_one_run_or_for_all(tmp_path):
    a, b = write(tmp_path / "runs" / "a"), write(tmp_path / "runs" / "b")
    assert report(a).stdout.split() == [str(a / "report.html")]
    assert report(a, b).stdout.split() == [str(tmp_path / "runs" / "comparison.html")]
    other = tmp_path / "other.html"
    assert report(b, a, "--out", other).stdout.split() == [str(other)]
    assert "<h1>2 runs</h1>" in other.read_text()
    assert report(a, a, "--out", other).exit_code == 0  # a repeated run counts once
    assert "<h1>a</h1>" in other.read_text()


def test_another_file_is_not_overwritten(tmp_path):
    a, b = write(tmp_path / "a"), write(tmp_path / "b")
    (tmp_path / "comparison.html").write_text("mine")
    for arguments in ([a, b], [a, "--out", tmp_path / "comparison.html"]):
        result = report(*arguments)
        assert result.exit_code == 2
        assert "comparison.html is not a page of groupwise" in result.stderr
    assert (tmp_path / "comparison.html").read_text() == "mine"
    (a / "report.html").write_text("from an earlier version")
    assert write_report(a).read_text().startswith("<!DOCTYPE")


def test_a_folder_without_a_run_is_refused(tmp_path):
    result = report(write(tmp_path / "a"), os.devnull)
    assert result.exit_code == 2
    assert "/dev/null is not the folder of a run" in result.stderr
    result = report(tmp_path)
    assert result.exit_code == 2
    assert (
        result.stderr == f"error: {tmp_path} is not the folder of a run: it has no metrics.jsonl\n"
    )
    for name in ("a", "b"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "run.json").write_text("{}")
    assert report(tmp_path).stderr.endswith("has no metrics.jsonl; it holds 2 runs: a, b\n")
    assert report(tmp_path / "c").stderr == f"error: no such folder: {tmp_path / 'c'}\n"
