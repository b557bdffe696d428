"""Resuming a run: from any folder, with its own configuration, and after kills and damage."""

import json
import re
import shutil
import sys

import pytest
import torch
import yaml
from filelock import FileLock
from tests import tiny_model
from tests.command_line import call
from tests.repeated import lines

import groupwise
from groupwise.kit.errors import UserError
from groupwise.storage.checkpoint import Checkpoints
from groupwise.weights import KeptWeights


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A folder with a configuration, two sets of prompts and a run of one step."""
    home = tmp_path_factory.mktemp("begun")
    for name, plus in (("ones", 1), ("twos", 2)):
        rows = [{"prompt": f"{n} + {plus} =", "answer": str(n + plus)} for n in range(20)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (home / f"{name}.jsonl").write_text(lines)
    config = {
        "policy": {
            "name": "language_model",
            "model": str(tiny_model.folder()),
            "max_new_tokens": 3,
        },
        "prompts": {"name": "dataset", "path": "ones.jsonl", "held_out": 0.3},
        "rewards": [{"name": "numeric_answer"}],
        "train": {"steps": 1, "groups_per_step": 1, "group_size": 2},
        "evaluation": {"prompts": 1, "greedy": False},
    }
    (home / "run.yaml").write_text(yaml.safe_dump(config))
    output = f"output={home / 'runs' / 'run'}"
    result = call("train", home / "run.yaml", "prompts.path=twos.jsonl", output, "--quiet")
    assert result.exit_code == 0, result.output
    return home


@pytest.fixture
def project(started, tmp_path, monkeypatch):
    """A copy of `started`, which is the current folder."""
    home = tmp_path / "project"
    shutil.copytree(started, home)
    facts = home / "runs" / "run" / "run.json"
    facts.write_text(facts.read_text().replace(str(started), str(home)))
    monkeypatch.chdir(home)
    return home


def evaluated_prompts(folder):
    text = (folder / "samples" / "after.jsonl").read_text()
    return {json.loads(line)["prompt"] for line in text.splitlines()}


def test_resume_uses_the_configuration_of_the_run(project, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    result = call("resume", project / "runs" / "run", "train.steps=2")
    assert result.exit_code == 0, result.output
    assert "note: resumed with train.steps: 1 -> 2" in result.stderr
    assert re.search(r"step 2/2  reward .*tokens/s  left 0:00:0", result.stderr)
    assert "prompts.path" not in result.stderr
    assert not list(elsewhere.iterdir())
    assert json.loads((project / "runs/run/result.json").read_text())["steps"] == 2
    assert all("+ 2" in prompt for prompt in evaluated_prompts(project / "runs" / "run"))
    # Also by the run's own configuration, from any folder, and from Python.
    result = call("train", project / "runs/run/config.yaml", "train.steps=3", "--resume")
    assert result.exit_code == 0, result.output
    again = groupwise.train(
        project / "runs/run/config.yaml", resume=True, quiet=True, **{"train.steps": 4}
    )
    assert (again.steps, again.folder) == (4, project / "runs" / "run")


def test_auto_resume_starts_a_run_or_resumes_it(project):
    folder, line = project / "runs" / "again", ("train", "run.yaml", "output=runs/again", "--quiet")

    def steps():
        text = (folder / "metrics.jsonl").read_text()
        return [json.loads(line)["step"] for line in text.splitlines()]

    assert call(*line, "--auto-resume").exit_code == 0
    first = (folder / "metrics.jsonl").read_text().splitlines()[:2]
    assert call(*line, "--auto-resume", "train.steps=2").exit_code == 0
    assert (folder / "metrics.jsonl").read_text().splitlines()[:2] == first
    assert steps() == [0, 1, 1, 2, 2]
    # A kill before the first checkpoint leaves nothing to resume from.
    for name in ("checkpoints", "model"):
        shutil.rmtree(folder / name)
    (folder / "result.json").unlink()
    assert "error: no checkpoint in " in call(*line, "--resume").stderr
    assert call(*line, "--auto-resume").exit_code == 0
    assert steps() == [0, 1, 1]
    # A damaged run is not started anew, and folders that are not runs are not touched.
    (folder / "checkpoints" / "step_1" / "weights.safetensors").write_bytes(b"")
    assert "incomplete or damaged" in call(*line, "--auto-resume").stderr.replace("\n", " ")
    (project / "mine").mkdir()
    (project / "mine" / "notes").touch()
    assert "mine exists" in call(*line, "output=mine", "--auto-resume").stderr
    assert "choose one" in call(*line, "--overwrite", "--auto-resume").stderr


def test_auto_resume_waits_for_the_process_that_uses_the_run(project, monkeypatch):
    notes, lock = [], FileLock(project / "runs" / "run" / "run.lock")

    def release(note, **_):
        notes.append(note)
        lock.release()

    monkeypatch.setattr("builtins.print", release)
    line = ("train", "run.yaml", "prompts.path=twos.jsonl", "--quiet")
    with lock:
        assert "is in use by process" in call(*line, "--resume").stderr
        assert notes == []
        result = call(*line, "--auto-resume", "train.steps=2")
    assert result.exit_code == 0, result.output
    assert "runs/run is in use by process" in notes[0]
    assert "waiting up to 120 s" in notes[0]


def test_a_run_is_resumed_from_another_folder_with_its_modules_and_paths(
    project, tmp_path, monkeypatch
):
    origin, elsewhere = tmp_path / "begun", tmp_path / "elsewhere"
    for folder in (origin, elsewhere):
        folder.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path])
    (origin / "local_rewards.py").write_text(
        "def short(completions): return [1.0] * len(completions)"
    )
    (origin / "here.jsonl").write_text((project / "ones.jsonl").read_text())
    monkeypatch.chdir(origin)
    line = ("rewards=[local_rewards:short]", "prompts.path=here.jsonl", "output=run", "--quiet")
    assert call("train", project / "run.yaml", *line).exit_code == 0
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(origin)])
    sys.modules.pop("local_rewards")
    for arguments in (("resume", origin / "run", "train.steps=2"), ("eval", origin / "run")):
        result = call(*arguments)
        assert result.exit_code == 0, result.output


def test_resuming_with_other_data_is_refused_unless_the_command_sets_it(project):
    checkpoint = Checkpoints(project / "runs/run/checkpoints").last()
    result = call("train", "run.yaml", "train.steps=2", "--resume")
    assert result.exit_code == 2
    messages = ("prompts.path: the run was started with twos.jsonl", "run.yaml has ones.jsonl")
    for part in (*messages, "groupwise resume runs/run", "prompts.path=ones.jsonl"):
        assert part in result.stderr.replace("\n", " ")
    assert Checkpoints(project / "runs/run/checkpoints").last() == checkpoint
    line = ["train", "run.yaml", "train.steps=2", "prompts.path=ones.jsonl", "--resume"]
    result = call(*line)
    assert result.exit_code == 0, result.output
    assert "note: resumed with prompts.path: twos.jsonl -> ones.jsonl" in result.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [("policy.max_new_tokens", "4"), ("rewards.0.extract", "whole"), ("rewards.0.weight", "2")],
)
def test_another_model_or_other_rewards_are_refused(project, key, value):
    shutil.copy(project / "run.yaml", project / "other.yaml")
    text = (project / "run.yaml").read_text()
    config = yaml.safe_load(text)
    config["prompts"]["path"] = "twos.jsonl"
    config["output"] = "runs/run"
    section = config["policy"] if key.startswith("policy") else config["rewards"][0]
    section[key.rpartition(".")[2]] = yaml.safe_load(value)
    (project / "run.yaml").write_text(yaml.safe_dump(config))
    assert f"{key}: the run was started with" in call("train", "run.yaml", "--resume").stderr
    result = call("train", "run.yaml", f"{key}={value}", "--resume")
    assert result.exit_code == 0, result.output


def test_resuming_from_python_with_other_data_is_refused(project):
    changed = {"train": {"steps": 2}, "resume": True, "quiet": True}
    with pytest.raises(UserError, match=r"prompts\.path: the run was started with twos\.jsonl"):
        groupwise.train("run.yaml", **changed)
    prompts = {"prompts": {"path": "ones.jsonl"}}
    assert groupwise.train("run.yaml", **prompts, **changed).steps == 2


def test_a_run_with_python_objects_is_resumed_only_from_python(project):
    """Although a registered reward has the name of the function, the command line refuses."""

    def exact_answer(completions, **columns):
        return [0.5 * len(text) for text in completions]

    arguments = {"rewards": [exact_answer], "output": "runs/named", "quiet": True}
    groupwise.train("run.yaml", **arguments)
    for command in ("resume", "eval"):
        result = call(command, "runs/named")
        assert result.exit_code == 2
        assert "was started with Python objects for rewards.0" in result.stderr
    again = groupwise.train("run.yaml", resume=True, **arguments, **{"train.steps": 2})
    assert again.after["rewards/exact_answer"] > 0


def test_held_out_cannot_change_when_a_run_is_resumed_or_evaluated(project):
    folder = project / "runs" / "run"
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("held_out: 0.3", "held_out: 0.5"))
    result = call("resume", folder, "train.steps=2")
    assert result.exit_code == 2
    assert (
        "prompts.held_out: a run must be resumed and evaluated with its own value, 0.3"
        in result.stderr
    )
    (folder / "config.yaml").write_text(text)
    assert "its own value, 0.3, found 0.9" in call("eval", folder, "prompts.held_out=0.9").stderr


def test_resuming_a_copied_or_moved_project_names_the_folder_of_its_paths(project, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(project, copied)
    result = call("resume", copied / "runs" / "run", "train.steps=2")
    assert f"its paths are relative to {project}" in result.stderr.replace("\n", "")
    line = ("train", copied / "run.yaml", "--resume", f"output={copied / 'runs' / 'run'}")
    result = call(*line, "train.steps=3", "prompts.path=twos.jsonl")
    moved = f"paths relative to: {project} -> {copied}"
    assert "".join(moved.split()) in "".join(result.stderr.split())  # lines are wrapped
    facts = project / "runs" / "run" / "run.json"
    facts.write_text(facts.read_text().replace(str(project), str(tmp_path / "gone")))
    result = call("resume", project / "runs" / "run")
    assert (result.exit_code, "is gone; if the project was moved" in result.stderr) == (2, True)


def test_a_change_that_fails_is_not_saved(project):
    (project / "boom_rewards.py").write_text("def boom(completions): raise RuntimeError('no')\n")
    folder = project / "runs" / "run"
    before = (folder / "config.yaml").read_text()
    assert call("resume", folder, "train.steps=3", "rewards.0=boom_rewards:boom").exit_code == 2
    assert (folder / "config.yaml").read_text() == before
    assert call("resume", folder, "train.steps=2").exit_code == 0
    assert "steps: 2" in (folder / "config.yaml").read_text()


def test_a_missing_first_evaluation_leaves_before_empty(project):
    folder = project / "runs" / "run"
    (folder / "samples" / "before.json").unlink()
    result = call("resume", folder, "train.steps=2")
    assert "samples/before.json is gone" in result.stderr
    assert json.loads((folder / "result.json").read_text())["before"] == {}


@pytest.mark.slow
def test_the_settings_of_accuracy_apply_to_eval(project):
    (project / "graded_rewards.py").write_text(
        "def graded(completions): return [0.5 * len(text) for text in completions]\n"
    )
    line = ("rewards=[graded_rewards:graded]", "output=runs/graded", "--quiet")
    assert call("train", "run.yaml", *line).exit_code == 0
    assert "accuracy" not in call("eval", "runs/graded").stdout
    assert "accuracy" in call("eval", "runs/graded", "evaluation.threshold=0.5").stdout


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"config_folder": 3}', "\x00"])
def test_a_damaged_run_json_is_an_error(project, damage):
    (project / "runs" / "run" / "run.json").write_text(damage)
    result = call("resume", project / "runs" / "run")
    assert (result.exit_code, "run.json is damaged" in result.stderr) == (2, True)


@pytest.mark.parametrize("place", ["run.yaml/inside", "/proc/inside"])
def test_an_output_that_cannot_be_created_is_an_error(project, place):
    result = call("train", "run.yaml", f"output={place}")
    assert result.exit_code == 2, result.output
    assert "error: output: " in result.stderr


def test_a_folder_that_is_not_a_run_is_an_error(project):
    assert "is not the folder of a run: it has no config.yaml" in call("resume", project).stderr
    assert "is not the folder of a run" in call("eval", project).stderr


def test_evaluating_builds_no_optimizer_and_keeps_no_reference(project, monkeypatch):
    call("train", "run.yaml", "output=runs/kl", "algorithm={name: grpo, beta: 0.1}", "--quiet")

    def fail(*_, **__):
        raise AssertionError("an evaluation needs none of it")

    monkeypatch.setattr(torch.optim.AdamW, "__init__", fail)
    monkeypatch.setattr(KeptWeights, "keep", fail)
    result = call("eval", "runs/kl", "evaluation.prompts=2")
    assert result.exit_code == 0, result.output
    assert ["prompts", "2"] in [line.split() for line in result.stdout.splitlines()]


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.slow(after=1)
def test_a_run_killed_after_its_last_step_evaluates_once(project, every):
    folder = project / "runs" / "run"
    more = f"evaluation.every={every}"
    assert call("resume", folder, "train.steps=2", more, "--quiet").exit_code == 0
    expected = lines(folder)
    # The state after a kill between writing the evaluation and the result.
    (folder / "result.json").unlink()
    (folder / "samples" / "after.jsonl").unlink()
    assert call("resume", folder, "--quiet").exit_code == 0
    assert lines(folder) == expected
    assert (folder / "samples" / "after.jsonl").exists()


def test_after_a_damaged_checkpoint_the_run_resumes_from_the_one_before(project):
    folder = project / "runs" / "run"
    keep = ("train.checkpoint_every=1", "train.keep_checkpoints=3", "--quiet")
    assert call("resume", folder, "train.steps=4", *keep).exit_code == 0
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["step_2", "step_3", "step_4"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    weights = folder / "checkpoints" / "step_4" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert call("resume", folder, "--quiet").exit_code == 0
    again = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in again] == [line["step"] for line in lines]
    assert [line.get("reward") for line in again] == [line.get("reward") for line in lines]


def test_the_error_of_a_failing_reward_names_the_resume_command(project, monkeypatch):
    (project / "failing_late.py").write_text(
        "calls = []\n"
        "def late(completions):\n"
        "    calls.append(1)\n"
        "    return [1.0] * (len(completions) - (len(calls) > 3))\n"
    )
    result = call(
        "train", "run.yaml", "output=runs/late", "rewards=[failing_late:late]", "train.steps=9"
    )
    assert result.exit_code == 2
    assert "`groupwise resume runs/late` goes on from it" in result.stderr


def test_the_model_card_has_the_facts_of_the_run(project, started):
    text = (project / "runs/run/model/README.md").read_text()
    head, _, body = text.removeprefix("---\n").partition("---\n")
    assert {"groupwise", "grpo"} <= set(yaml.safe_load(head)["tags"])
    assert f'from_pretrained("{started}/runs/run/model")' in body
    for words in ("dataset (path: twos.jsonl)", "numeric_answer", "held-out prompts", "| seed | 0"):
        assert words in body


def test_added_prompts_give_a_warning(project):
    with (project / "twos.jsonl").open("a") as file:
        file.write('{"prompt": "30 + 2 =", "answer": "32"}\n')
    result = call("resume", project / "runs" / "run", "train.steps=2")
    assert result.exit_code == 0, result.output
    assert "there are 21 rows of prompts, before there were 20" in result.stderr.replace("\n", " ")


def rewritten(project, change):
    """What a resumed run says when its rows, of the same number, are changed."""
    path = project / "twos.jsonl"
    rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = call("resume", project / "runs" / "run", "train.steps=2")
    assert result.exit_code == 0, result.output
    return " ".join(result.stderr.split())


@pytest.mark.parametrize("column", ["prompt", "answer", "more"])
def test_changed_rows_of_the_same_number_give_a_warning(project, column):
    """In any column: of a prompt, of a gold answer, or one more."""
    text = rewritten(project, lambda row: {**row, column: f"{row.get(column, '')}1"})
    assert "rows of prompts are others than before, 20 of 20 that were compared" in text
    assert "1 of 1 evaluated prompts are others than before (the first: prompts, row " in text


def test_rows_that_are_only_evaluated_are_compared(project):
    (evaluated,) = evaluated_prompts(project / "runs" / "run")
    text = rewritten(
        project, lambda row: {**row, "answer": "0"} if row["prompt"] == evaluated else row
    )
    assert "1 of 20 that were compared" in text
    assert "1 of 1 evaluated prompts are others than before" in text


def test_equal_rows_in_another_notation_give_no_warning(project):
    assert "others than before" not in rewritten(project, lambda row: dict(reversed(row.items())))
