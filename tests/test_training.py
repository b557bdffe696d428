"""A short training of a language model from end to end: run, resume, evaluate."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import call

from groupwise.config.load import load_config
from groupwise.run.evaluate import evaluate_run
from groupwise.run.train import train_from_config

pytestmark = pytest.mark.slow

ARITHMETIC = Path(__file__).parent.parent / "examples" / "arithmetic.yaml"


def records(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of the lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Twenty steps of the example, each with a quarter of its rollouts."""
    folder = tmp_path_factory.mktemp("run") / "arithmetic"
    loaded = load_config(
        ARITHMETIC,
        [
            "train.steps=20",
            "train.groups_per_step=8",
            "train.group_size=8",
            "train.learning_rate=3e-4",
            "evaluation.prompts=100",
            "evaluation.every=0",
            f"output={folder}",
        ],
    )
    return train_from_config(loaded, quiet=True)


def test_accuracy_and_length_rise(trained):
    before, after = trained.before, trained.after
    assert 0.3 < before["accuracy"] < 0.65
    assert after["accuracy"] > before["accuracy"] + 0.1
    assert after["length"] > before["length"] + 5


def test_the_files_of_a_run(trained, rounding):
    result = json.loads((trained.folder / "result.json").read_text())
    assert result["steps"] == 20
    assert result["after"]["accuracy"] == pytest.approx(trained.after["accuracy"])
    lines = records(trained.folder / "metrics.jsonl")
    steps = [line for line in lines if "reward" in line]
    assert [line["step"] for line in steps] == list(range(1, 21))
    bound = rounding.ratio_bound(trained.policy, {"prompt": "12+34="})
    assert max(line["mismatch/max"] for line in steps) <= bound
    assert "Before and after" in (trained.folder / "report.html").read_text()
    pairs = [
        [(s["draw"], s["index"], s["greedy"]) for s in records(path)]
        for path in (trained.folder / "samples" / f"{when}.jsonl" for when in ("before", "after"))
    ]
    assert pairs[0] == pairs[1]
    assert len(pairs[0]) == 200


def test_transformers_loads_the_model_without_groupwise(trained):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(trained.folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(trained.folder / "model")
    question = "State the final answer to the following arithmetic problem: 41 + 22 + 13 + 11 =\n"
    ids = tokenizer(question, return_tensors="pt")
    answer = tokenizer.decode(
        model.generate(**ids, max_new_tokens=80)[0][ids["input_ids"].shape[1] :]
    )
    assert answer.startswith("<think>\n")
    assert "</answer>" in answer


def test_evaluated_prompts_are_held_out(trained):
    from groupwise.prompts.split import held_out

    samples = records(trained.folder / "samples" / "after.jsonl")
    assert all(held_out(sample["prompt"].strip(), 0.1) for sample in samples)


def test_evaluating_again_gives_the_same_metrics(trained):
    metrics = evaluate_run(trained.folder).metrics
    assert metrics == pytest.approx(dict(trained.after), nan_ok=True)


def test_a_resumed_run_ends_with_the_same_weights(tmp_path):
    small = [
        "policy.max_new_tokens=12",
        "train.groups_per_step=2",
        "train.group_size=4",
        "evaluation.prompts=4",
        "evaluation.every=0",
    ]

    def run(name, steps, **options):
        overrides = [*small, f"train.steps={steps}", f"output={tmp_path / name}"]
        return train_from_config(load_config(ARITHMETIC, overrides), quiet=True, **options)

    uninterrupted = run("uninterrupted", 4)
    run("halved", 2)
    resumed = run("halved", 4, resume=True)
    for one, other in zip(
        uninterrupted.policy.parameters(), resumed.policy.parameters(), strict=True
    ):
        assert one.equal(other)
    rewards = [
        [row["reward"] for row in records(tmp_path / name / "metrics.jsonl") if "reward" in row]
        for name in ("uninterrupted", "halved")
    ]
    assert rewards[0] == rewards[1]


def test_training_from_python_with_a_function_and_rows(tmp_path):
    import groupwise

    def even(completions, **columns):
        return [float(len(text) % 2 == 0) for text in completions]

    result = groupwise.train(
        policy={
            "name": "language_model",
            "model": str(ARITHMETIC.parent / "arithmetic" / "base"),
            "max_new_tokens": 6,
        },
        rewards=[even],
        prompts=[{"prompt": f"{n} + 2 ="} for n in range(30)],
        train={"steps": 1, "groups_per_step": 2, "group_size": 4},
        evaluation={"prompts": 1},
        output=tmp_path / "run",
        quiet=True,
    )
    assert math.isfinite(result.after["rewards/even"])


def test_check_prints_rollouts_and_memory():
    result = call("check", ARITHMETIC)
    assert result.exit_code == 0, result.output
    assert "rollouts per step" in result.output
    assert "256" in result.output
    assert "weights" in result.output
