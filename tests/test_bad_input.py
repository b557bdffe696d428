"""Mistakes in configurations: one error, exit code 2, no traceback, no files left behind."""

import builtins
import errno
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import yaml
from tests import command_line, tiny_model

from groupwise.run import train as runs

ROWS = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(20)]


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A small valid configuration, in its own folder."""
    monkeypatch.chdir(tmp_path)
    return {
        "policy": {
            "name": "language_model",
            "model": str(tiny_model.folder()),
            "max_new_tokens": 4,
        },
        "prompts": {"name": "rows", "rows": ROWS, "held_out": 0.3},
        "rewards": [{"name": "numeric_answer"}],
        "train": {"steps": 1, "groups_per_step": 1, "group_size": 2},
        "evaluation": {"prompts": 1},
    }


def call(config, *arguments, command="train"):
    path = Path("run.yaml")
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config, sort_keys=False))
    return command_line.call(command, path, *arguments)


def refused(config, *arguments, command="train"):
    """The output of a refused command on stderr, which has exactly one error."""
    result = call(config, *arguments, command=command)
    assert result.exit_code == 2, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in result.output
    return result.stderr


def test_the_configuration_itself_works(config):
    result = call(config)
    assert result.exit_code == 0, result.output
    assert json.loads(Path("runs/run/result.json").read_text())["steps"] == 1


def test_misspelt_key(config):
    config["train"]["lerning_rate"] = 1e-4
    message = refused(config)
    lines = Path("run.yaml").read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(lines) if "lerning_rate" in text)
    assert f"run.yaml, line {line}: train.lerning_rate" in message
    assert "did you mean 'learning_rate'?" in message


def test_misspelt_key_of_a_plugin(config):
    config["policy"]["max_new_token"] = 4
    assert "did you mean 'max_new_tokens'?" in refused(config)


def test_wrong_type(config):
    config["train"]["steps"] = "many"
    message = refused(config)
    assert "train.steps" in message
    assert "'many'" in message


@pytest.mark.parametrize("section", ["policy", "prompts", "algorithm"])
def test_unknown_plugin(config, section):
    name = {"policy": "langage_model", "prompts": "row", "algorithm": "drgrpo"}[section]
    config.setdefault(section, {})
    config[section] = {**config[section], "name": name}
    message = refused(config)
    assert f"{name!r}" in message
    assert "did you mean" in message


def test_unknown_reward(config):
    config["rewards"] = ["numeric_anser"]
    assert "did you mean 'numeric_answer'?" in refused(config)


@pytest.mark.parametrize("package", ["pebble", "math_verify"])
def test_missing_extra(config, monkeypatch, package):
    original = builtins.__import__

    def without(name, *rest, **more):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return original(name, *rest, **more)

    for name in [n for n in sys.modules if n.startswith(("groupwise_verifiable", package))]:
        monkeypatch.delitem(sys.modules, name)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == package else find_spec(name, *a),
    )
    monkeypatch.setattr(builtins, "__import__", without)
    config["rewards"] = [{"name": "math", "rules": "trl"}]
    assert "groupwise[math]" in refused(config)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"task": "chain_sums"}, "chain_sum"),
        ({"task": "chain_sum", "options": {"min_term": 2}}, "min_term"),
        ({"task": "chain_sum", "system": "Add."}, "chat"),
    ],
)
def test_invalid_options_of_puzzles(config, section, expected):
    config["prompts"] = {"name": "reasoning_gym", **section}
    message = refused(config)
    assert "prompts" in message
    assert expected in message


def test_dataset_that_is_not_utf_8(config):
    Path("bad.jsonl").write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    config["prompts"] = {"name": "dataset", "path": "bad.jsonl"}
    assert "bad.jsonl, line 2" in refused(config)


def test_misspelt_loading_argument(config):
    config["policy"]["loading"] = {"gguf_fil": "model.gguf"}
    assert "policy.loading.gguf_fil: " in refused(config)


def test_a_model_without_a_pad_token_works(config, tmp_path):
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(config["policy"]["model"], bare)
    for name in ("tokenizer_config.json", "config.json", "generation_config.json"):
        settings = json.loads((bare / name).read_text())
        settings.pop("pad_token", None)
        settings.pop("pad_token_id", None)
        (bare / name).write_text(json.dumps(settings))
    config["policy"]["model"] = str(bare)
    result = call(config)
    assert result.exit_code == 0, result.output
    assert "pad" not in result.output


def test_a_reward_that_fails_late_keeps_the_steps_before(config):
    Path("late.py").write_text(
        "calls = []\n"
        "def late(completions):\n"
        "    calls.append(1)\n"
        "    return [1.0] * (len(completions) - (len(calls) > 4))\n"
    )
    config["rewards"] = ["late:late"]
    config["train"]["steps"] = 9
    assert "'late' returned 1 value for 2 completions" in refused(config)
    state = json.loads(Path("runs/run/checkpoints/step_2/state.json").read_text())
    assert state["step"] == state["prompts"]["drawn"] == 2
    assert Path("runs/run/model/model.safetensors").exists()


def test_missing_configuration_file(tmp_path):
    result = command_line.call("train", tmp_path / "none.yaml")
    assert result.exit_code == 2
    assert "none.yaml: no such file" in result.stderr


def test_missing_dataset(config):
    config["prompts"] = {"name": "dataset", "path": "none.jsonl"}
    assert "no file none.jsonl" in refused(config)


def test_empty_dataset(config):
    Path("empty.jsonl").touch()
    config["prompts"] = {"name": "dataset", "path": "empty.jsonl"}
    assert "empty.jsonl is empty" in refused(config)


def test_malformed_dataset_row(config):
    Path("bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": oops}\n')
    config["prompts"] = {"name": "dataset", "path": "bad.jsonl"}
    assert "bad.jsonl, line 2" in refused(config)


def test_dataset_row_without_a_usable_prompt(config):
    Path("rows.jsonl").write_text('{"prompt": "", "answer": "1"}\n')
    config["prompts"] = {"name": "dataset", "path": "rows.jsonl"}
    assert "row 0: 'prompt' must be a non-empty string" in refused(config)


def test_dataset_without_a_prompt_column(config):
    Path("rows.jsonl").write_text('{"question": "a", "answer": "1"}\n')
    config["prompts"] = {"name": "dataset", "path": "rows.jsonl"}
    message = refused(config)
    assert "no column 'prompt'" in message
    assert "question" in message


def test_missing_column_of_a_reward(config):
    config["prompts"]["rows"] = [{"prompt": str(n)} for n in range(20)]
    assert "'answer'" in refused(config)


def test_column_with_the_name_of_an_argument(config):
    config["prompts"]["rows"] = [{**row, "completions": 1} for row in ROWS]
    message = refused(config)
    assert "'completions' collides" in message
    assert "numeric_answer" in message


def test_prompt_longer_than_the_model_allows(config):
    config["prompts"]["rows"] = [{"prompt": f"{n} " * 600, "answer": "1"} for n in range(20)]
    assert "leaves of the 512 positions" in refused(config)


def test_group_of_one(config):
    config["train"]["group_size"] = 1
    assert "'grpo' compares the completions of a prompt: expected at least 2" in refused(config)


def test_more_evaluation_prompts_than_held_out_rows(config):
    config["evaluation"]["prompts"] = 500
    assert "evaluation.prompts asks for 500" in refused(config)


def test_run_folder_that_exists(config):
    Path("runs/run").mkdir(parents=True)
    Path("runs/run/config.yaml").write_text("an older run")
    Path("runs/run/checkpoints/step_3").mkdir(parents=True)
    Path("runs/run/checkpoints/step_3/files.json").write_text("{}")
    message = refused(config)
    assert "runs/run exists; choose another folder" in message
    Path("runs/run/run.json").write_text('{"groupwise": "0.1.0"}')
    assert "groupwise resume runs/run" in refused(config)
    assert Path("runs/run/config.yaml").read_text() == "an older run"


@pytest.mark.parametrize("name", ["thesis.tex", "config.yaml"])
def test_overwrite_deletes_only_folders_of_runs(config, name):
    Path("runs/run").mkdir(parents=True)
    Path("runs/run", name).write_text("years of work")
    assert "it has no run.json of a run" in refused(config, "--overwrite")
    assert Path("runs/run", name).exists()


def test_a_mistake_with_overwrite_keeps_the_existing_run(config):
    Path("runs/run").mkdir(parents=True)
    Path("runs/run/config.yaml").write_text("an older run")
    Path("runs/run/run.json").write_text('{"groupwise": "0.1.0"}')
    config["policy"]["model"] = "nowhere/nothing"
    refused(config, "--overwrite")
    assert Path("runs/run/config.yaml").read_text() == "an older run"


def test_resume_without_a_run(config):
    assert "nothing to resume" in refused(config, "--resume")


def test_full_disk(config, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "runs/run/model")

    monkeypatch.setattr(runs.Checkpoints, "save", full)
    assert "error: no space left on device: runs/run/model" in refused(config)


def test_model_that_does_not_exist(config):
    config["policy"]["model"] = "./nowhere"
    assert "policy.model: no such file or folder as './nowhere'" in refused(config)
    config["policy"]["model"] = "no_model"  # it might be on a hub
    assert "cannot load a causal language model from 'no_model'" in refused(config)


def test_check_reports_the_same_mistakes_without_training(config):
    config["policy"]["max_new_token"] = 4
    assert "did you mean 'max_new_tokens'?" in refused(config, command="check")
    assert not Path("runs").exists()


def test_accuracy_of_an_unknown_reward(config):
    config["evaluation"]["accuracy"] = "correctness"
    assert "no reward 'correctness'" in refused(config)
