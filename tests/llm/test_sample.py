"""`groupwise sample` with a language model, and that TRL and `datasets` read its output."""

import json

import pytest
import yaml
from tests.command_line import call

from groupwise.config.load import load_config
from groupwise.run.train import train_from_config

CHAT = [{"role": "user", "content": "b"}]
ROWS = [{"prompt": f"{a} and {b}", "answer": a} for a in "abcdef" for b in "xyz"]


@pytest.fixture(scope="module")
def trained(saved, tmp_path_factory):
    """trained(rows) -> the folder of a run of one step."""

    def make(rows):
        folder = tmp_path_factory.mktemp("run")
        config = {
            "output": str(folder / "run"),
            "policy": {
                "name": "language_model",
                "model": str(saved("qwen2")),
                "max_new_tokens": 6,
            },
            "prompts": {"name": "rows", "rows": rows, "held_out": 0.2},
            "rewards": [{"name": "soft_overlong", "max_length": 6, "cache": 5}],
            "train": {"steps": 1, "groups_per_step": 1, "group_size": 2},
            "evaluation": {"prompts": 1},
        }
        path = folder / "run.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return train_from_config(load_config(path, []), quiet=True).folder

    return make


@pytest.mark.slow
def test_the_command_writes_a_file_of_samples(trained):
    run = trained(ROWS)
    result = call("sample", run, "--per-prompt", 3, "--prompts", 4, "--keep", "all")
    assert result.exit_code == 0, result.output
    lines = [json.loads(x) for x in (run / "sampled.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == 12
    summary = "4 prompts, 12 completions, mean reward"
    assert result.stdout.startswith(summary)
    assert "kept 12, of 4 prompts: " in result.stdout
    assert all(line["answer"] == line["prompt"][0] for line in lines)

    again = call("sample", run, "--per-prompt", 3)
    assert again.exit_code == 2
    assert "choose another --output, or replace it: --overwrite" in again.output
    fewer = call("sample", run, "--per-prompt", 1, "--keep", "all", "--prompts", 99, "--overwrite")
    assert fewer.exit_code == 0, fewer.output
    count = len((run / "sampled.jsonl").read_text("utf-8").splitlines())
    assert 4 < count < len(ROWS)
    assert f"note: there are no more than {count} such prompts" in fewer.output


def test_an_interrupt_reports_how_many_completions_were_written(trained, monkeypatch):
    from groupwise_commands import sampling

    run = trained(ROWS)
    sampled_prompts = sampling.sampled_prompts

    def interrupted(*arguments):
        for number, prompt in enumerate(sampled_prompts(*arguments)):
            if number == 2:
                raise KeyboardInterrupt
            yield prompt

    monkeypatch.setattr(sampling, "sampled_prompts", interrupted)
    result = call("sample", run, "--per-prompt", 2, "--keep", "all")
    assert result.exit_code == 130
    assert "stopped: 2 prompts, 4 completions" in result.output
    assert len((run / "sampled.jsonl").read_text("utf-8").splitlines()) == 4


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.slow(after=1)
def test_trl_and_datasets_read_the_file(trained, chat):
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    rows = [{**row, "prompt": [*CHAT, {"role": "user", "content": row["prompt"]}]} for row in ROWS]
    run = trained(rows if chat else ROWS)
    result = call("sample", run, "--per-prompt", 2, "--prompts", 3, "--keep", "all")
    assert result.exit_code == 0, result.output
    path = run / "sampled.jsonl"
    data = load_dataset("json", data_files=str(path), split="train", cache_dir=str(run / "cache"))
    assert len(data) == 6
    arguments = SFTConfig(
        output_dir=str(run / "sft"),
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=None,  # a deprecated setting, which TRL would set otherwise
    )
    trainer = SFTTrainer(str(run / "model"), args=arguments, train_dataset=data)
    tokens = trainer.train_dataset[0]
    text = trainer.processing_class.decode([t for t in tokens["labels"] if t >= 0])
    completion = data[0]["completion"]
    assert (completion[0]["content"] if chat else completion) in text
    assert sum(label >= 0 for label in tokens["labels"]) < len(tokens["input_ids"])
