"""A whole run on two processes is the run on one, by DDP and sharded: adapters, a reference and
uneven shares."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import yaml

import groupwise
from groupwise_flow import reach
from groupwise_flow.reach import unreached

REWARD = """
from PIL import ImageStat

def redness(completions):
    means = [ImageStat.Stat(image).mean for image in completions]
    return [(red - (green + blue) / 2) / 255 for red, green, blue in means]
"""
WINDOW = {"kind": "random", "size": 2, "until": 1.0}
ROWS = [{"prompt": f"{letter} {animal}"} for letter in "abcdefgh" for animal in ("cat", "dog")]


CASES = {
    "full": ("flux with idle parts", {"gradient_checkpointing": True}),
    "lora": ("sd3", {"lora": {"rank": 2}, "shared_noise": True, "window": WINDOW, "batch": 4}),
}


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    names = ("reward", "loss", "kl", "grad_norm", "mismatch/max", "trained_decisions")
    return [{name: line[name] for name in names} for line in lines if "loss" in line]


def write_config(folder, lab, of, settings):
    folder.mkdir()
    (folder / "reddish.py").write_text(REWARD)
    model = {"model": str(lab.folders[of]), "height": 16, "width": 16, "prompt_tokens": 12}
    config = {
        "policy": {"name": "flow", "steps": 4, "evaluation_steps": 4, **model, **settings},
        "algorithm": {"name": "flow_grpo", "beta": 0.5, "clip_low": 0.2},
        "prompts": {"name": "rows", "rows": ROWS, "held_out": 0.5},
        "rewards": ["reddish:redness"],
        "train": {"steps": 3, "groups_per_step": 3, "group_size": 4, "learning_rate": 1e-3},
        "evaluation": {"prompts": 3},
        "output": str(folder / "run"),
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))


def outcome(folder):
    """What a run's steps measured, and its result."""
    return losses(folder / "run"), json.loads((folder / "run" / "result.json").read_text())


def on_two(folder, *arguments):
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command += ["-m", "groupwise", "train", str(folder / "run.yaml"), *arguments]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module", params=list(CASES))
def alone(request, folders, tmp_path_factory):
    """A case, and what one process makes of it."""
    lab, folder = SimpleNamespace(folders=folders), tmp_path_factory.mktemp("alone") / "one"
    write_config(folder, lab, *CASES[request.param])
    groupwise.train(folder / "run.yaml", quiet=True)
    steps, result = outcome(folder)
    assert [line["trained_decisions"] for line in steps] == [steps[0]["trained_decisions"]] * 3
    assert steps[-1]["kl"] > 0
    return SimpleNamespace(case=request.param, steps=steps, result=result)


def compare(alone, folder):
    steps, result = outcome(folder)
    for one, many in zip(alone.steps, steps, strict=True):
        assert many == pytest.approx(one, rel=2e-3, abs=1e-5)
    assert result["after"]["reward"] == pytest.approx(alone.result["after"]["reward"], abs=1e-4)


def test_parts_that_no_gradient_reaches_get_one_of_zero(lab, monkeypatch):
    """What the last block makes of the text goes nowhere in this model."""
    policy = lab.policy("flux with idle parts", gradient_checkpointing=True)
    rollouts = policy.sample(lab.rows, group_size=1, seeds=[1, 2])
    idle = unreached(policy(rollouts).log_probs, policy.parameters())
    assert 0 < len(idle) < len(lab.trained(policy)) / 2
    policy(rollouts).log_probs.sum().backward()
    alone = lab.gradient(policy)
    assert all(p.grad is None for p in idle)
    policy.zero_grad()
    monkeypatch.setattr(reach, "_distributed", lambda: True)
    policy(rollouts).log_probs.sum().backward()
    assert all(not p.grad.any() for p in idle)
    assert torch.equal(lab.gradient(policy), alone)


def test_two_processes_train_as_one(lab, alone, tmp_path):
    folder = tmp_path / "two"
    write_config(folder, lab, *CASES[alone.case])
    on_two(folder)
    compare(alone, folder)
    assert len(list((folder / "run" / "samples" / "after").iterdir())) == 3


def test_sharded_they_do_too_and_one_goes_on(lab, alone, tmp_path):
    """Groups are two for one process and one for the other, and so are held-out prompts."""
    folder = tmp_path / "two"
    write_config(folder, lab, *CASES[alone.case])
    if alone.case == "full":
        on_two(folder, "train.shard=true", "train.steps=2")
        groupwise.train(folder / "run.yaml", resume=True, quiet=True)
    else:
        on_two(folder, "train.shard=true")
    compare(alone, folder)
    saved = {path.name for path in (folder / "run" / "model").iterdir()}
    assert ("pytorch_lora_weights.safetensors" in saved) == (alone.case == "lora")
