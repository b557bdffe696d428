"""Runs: what they learn and write, and that a resumed run continues exactly."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.repeated import step_lines

import groupwise
from groupwise.prompts.seeds import seed_for
from groupwise.run.evaluate import evaluate_run
from groupwise.storage.checkpoint import Checkpoints

PROMPTS = [{"prompt": f"{letter} {animal}"} for letter in "abcdefgh" for animal in ("cat", "dog")]


@pytest.fixture
def train(lab, tmp_path):
    """train(name, policy={...}, train={...}, ...) runs a tiny pipeline in a folder of that name."""

    def run(name="run", *, policy=None, train=None, rewards=None, resume=False, **sections):
        usual = {"model": str(lab.folders["sd3"]), "height": 16, "width": 16, "prompt_tokens": 12}
        few = {"steps": 3, "groups_per_step": 2, "group_size": 4, "learning_rate": 1e-3}
        return groupwise.train(
            {
                "policy": {
                    "name": "flow",
                    **usual,
                    "steps": 4,
                    "evaluation_steps": 4,
                    **(policy or {}),
                },
                "algorithm": "flow_grpo",
                "prompts": {"name": "rows", "rows": PROMPTS, "held_out": 0.5},
                "train": {**few, **(train or {})},
                "evaluation": {"prompts": 2},
                "output": tmp_path / name,
                **sections,
            },
            resume=resume,
            quiet=True,
            rewards=rewards or [lab.redness],
        )

    return run


def lines(folder):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if "loss" in record]


def tensors(folder, name):
    return load_file(Checkpoints(folder / "checkpoints").last() / f"{name}.safetensors")


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_a_run_writes_what_it_did(lab, train, rounding):
    result = train(train={"ema": 0.5}, evaluation={"prompts": 2, "samples": 2, "every": 2})
    assert result.steps == 3
    assert result.before.keys() == result.after.keys()
    assert "rewards/redness" in result.after
    assert "greedy_accuracy" not in result.after
    assert result.after["rewards/redness"] != result.before["rewards/redness"]
    steps = lines(result.folder)
    assert [line["step"] for line in steps] == [1, 2, 3]
    bound = rounding.ratio_bound(result.policy, {"prompt": "a cat"})
    for line in steps:
        assert line["mismatch/max"] <= bound
        assert line["trained_decisions"] == 2 * 4 * 3
        assert line["length"] == 3
        assert line["grad_norm"] > 0
    assert "evaluation/rewards/redness" in steps[1]
    for when in ("before", "after"):
        samples = (result.folder / "samples" / f"{when}.jsonl").read_text().splitlines()
        assert len(samples) == 4
    assert json.loads((result.folder / "result.json").read_text())["unit"] == "denoising steps"
    assert (result.folder / "report.html").exists()


@pytest.mark.slow
def test_the_moving_average_is_evaluated_and_saved(lab, train):
    result = train(train={"ema": 0.6, "ema_every": 2, "steps": 4, "learning_rate": 0.01})
    own, average = tensors(result.folder, "weights"), tensors(result.folder, "kept_average")
    assert own.keys() == average.keys()
    assert any((own[name] - average[name]).abs().max() > 1e-3 for name in own)
    saved = lab.policy(model=str(result.folder / "model")).state_dict()
    assert all(torch.equal(saved[name], average[name]) for name in average)
    weights = result.policy.state_dict()
    assert all(torch.equal(weights[name], average[name]) for name in average)
    saved_policy = lab.policy(model=str(result.folder / "model"), evaluation_steps=4)
    samples = (result.folder / "samples" / "after.jsonl").read_text().splitlines()
    rewards = sorted(json.loads(sample)["rewards"]["redness"] for sample in samples)
    assert sum(rewards) / 2 == pytest.approx(result.after["rewards/redness"], abs=1e-6)
    seeds = [seed_for(0, "evaluation", json.loads(s)["draw"], 0) for s in samples]
    rows = [{"prompt": json.loads(sample)["prompt"]} for sample in samples]
    again = saved_policy.sample(rows, group_size=1, seeds=seeds, purpose="evaluate")
    assert sorted(lab.redness(again.completions)) == pytest.approx(rewards, abs=1e-6)


@pytest.mark.slow
def test_a_method_without_a_path_trains_on_the_best_and_worst_with_a_distance_to_keep(train):
    result = train(
        policy={"name": "forward_process"},
        algorithm={"name": "nft", "beta": {"target": 1e-3, "gain": 1.0}},
        train={"keep": {"extremes": 2}},
    )
    steps = lines(result.folder)
    assert [line["trained_decisions"] for line in steps] == [4, 4, 4]
    assert [line["beta"] for line in steps[:2]] == [0.04, 0.032]
    assert steps[1]["kl"] > 0


@pytest.mark.parametrize(
    ("policy", "settings", "beta"),
    [
        ({"guidance": 2.0}, {"ema": 0.5, "ema_every": 2}, 0.05),
        pytest.param(
            {"window": {"share": 0.7}},
            {"ema": 0.5, "keep": {"extremes": 2}},
            {"target": 1e-4, "gain": 1.0},
            marks=pytest.mark.slow(after=0),
        ),
        (
            {"lora": {"rank": 2}, "window": {"kind": "sliding", "size": 1, "every": 1}},
            {"ema": 0.9, "epochs": 2, "schedule": "cosine"},
            0.05,
        ),
    ],
)
@pytest.mark.slow(after=1)
def test_a_resumed_run_is_the_uninterrupted_one(train, policy, settings, beta):
    options = {"policy": policy, "algorithm": {"name": "flow_grpo", "beta": beta}}

    class Stop(groupwise.Callback):
        def on_step(self, step, metrics):
            if step == 2:
                raise ZeroDivisionError

    settings = {**settings, "steps": 4, "learning_rate": 0.01}
    uninterrupted = train("uninterrupted", train=settings, **options)
    with pytest.raises(ZeroDivisionError):
        train("halved", train=settings, callbacks=[Stop()], **options)
    resumed = train("halved", train=settings, resume=True, **options)
    for name in ("weights", "optimizer", "kept_average"):
        one, other = tensors(uninterrupted.folder, name), tensors(resumed.folder, name)
        assert equal(one, other), name
    assert dict(resumed.after) == dict(uninterrupted.after)
    for one, other in zip(lines(uninterrupted.folder), lines(resumed.folder), strict=True):
        keys = ("step", "loss", "reward", "grad_norm", "kl", "mismatch/max", "learning_rate")
        assert {k: one[k] for k in keys} == {k: other[k] for k in keys}


@pytest.mark.slow
def test_a_run_resumed_beside_other_prompts_is_the_uninterrupted_one(train):
    """Three prompts, two a step: from epoch to epoch, and after resuming, a prompt is drawn, and
    so encoded, with another one beside it."""

    class Stop(groupwise.Callback):
        def __init__(self, at):
            self.at = at

        def on_step(self, step, metrics):
            if step == self.at:
                raise ZeroDivisionError

    rows = [{"prompt": f"{name} cat"} for name in ("a", "big red", "two small")]
    options = {
        "policy": {"guidance": 2.0, "prompt_tokens": 16},
        "prompts": {"name": "rows", "rows": rows, "held_out": 0.0},
        "evaluation": {"prompts": 0},
        "train": {"steps": 6, "group_size": 2, "learning_rate": 0.01},
    }
    whole = train("whole", **options)
    for stop in (1, 2, 4, 5):
        with pytest.raises(ZeroDivisionError):
            train(f"cut after {stop}", callbacks=[Stop(stop)], **options)
        resumed = train(f"cut after {stop}", resume=True, **options)
        for name in ("weights", "optimizer"):
            assert equal(tensors(whole.folder, name), tensors(resumed.folder, name)), (stop, name)
        assert step_lines(whole.folder) == step_lines(resumed.folder), stop


def test_sliding_windows_follow_the_steps_of_a_run_and_of_its_resumption(lab, tmp_path):
    starts = []

    def train_to(steps, **more):
        policy = lab.policy(window={"kind": "sliding", "size": 2, "every": 2})
        sample = policy.sample

        def recorded(*positional, **named):
            rollouts = sample(*positional, **named)
            starts.append(rollouts.tensor("first").unique().tolist())
            return rollouts

        policy.sample = recorded
        groupwise.train(
            policy=policy,
            algorithm="flow_grpo",
            prompts=PROMPTS,
            rewards=[lab.redness],
            train={"steps": steps, "groups_per_step": 1, "group_size": 2},
            evaluation={"prompts": 0},
            output=tmp_path / "run",
            quiet=True,
            **more,
        )

    train_to(3)
    train_to(6, resume=True)
    assert starts == [[0], [0], [1], [1], [2], [2]]


def test_random_windows_shared_noise_and_lora_together(lab, train, rounding):
    result = train(
        policy={
            "lora": {"rank": 2, "alpha": 4},
            "shared_noise": True,
            "window": {"kind": "random", "size": 1},
            "sde": "cps",
            "noise_level": 0.8,
            "guidance": 1.5,
        },
        algorithm={"name": "flow_grpo", "beta": 0.01, "clip_low": 1e-3},
    )
    bound = rounding.ratio_bound(result.policy, {"prompt": "a cat"})
    for line in lines(result.folder):
        assert line["mismatch/max"] <= bound
        assert line["length"] == 1
    weights = tensors(result.folder, "weights")
    assert all("lora" in name for name in weights)
    assert any(bool(value.any()) for name, value in weights.items() if "lora_B" in name)
    names = {path.name for path in (result.folder / "model").iterdir()}
    assert names == {"pytorch_lora_weights.safetensors", "README.md"}


@pytest.mark.slow
def test_evaluating_a_finished_run_gives_the_same_metrics(train, tmp_path, monkeypatch):
    (tmp_path / "shades.py").write_text(
        "from PIL import ImageStat\n"
        "def red(completions, **_):\n"
        "    return [ImageStat.Stat(picture).mean[0] / 255 for picture in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    result = train(rewards=["shades:red"], train={"ema": 0.5, "steps": 2, "learning_rate": 0.01})
    again = evaluate_run(result.folder)
    assert again.metrics == pytest.approx(dict(result.after), rel=1e-6)
    assert result.after["rewards/red"] != result.before["rewards/red"]


def test_a_simple_reward_rises(train):
    result = train(
        train={"steps": 8, "groups_per_step": 2, "group_size": 12, "learning_rate": 0.01},
        evaluation={"prompts": 3, "samples": 4},
    )
    assert result.after["rewards/redness"] > result.before["rewards/redness"] + 0.06
