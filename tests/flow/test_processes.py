"""A whole run on two processes is the run on one: adapters, a reference and uneven shares."""

import json
import os
import subprocess
import sys

import pytest
import torch
import yaml

from groupwise_flow import reach
from groupwise_flow.reach import unreached

REWARD = """
def redness(completions):
    means = [[sum(band) / len(band) for band in zip(*image.getdata())] for image in completions]
    return [(red - (green + blue) / 2) / 255 for red, green, blue in means]
"""
ROWS = [{"prompt": f"{letter} {animal}"} for letter in "abcdefgh" for animal in ("cat", "dog")]


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    names = ("reward", "loss", "kl", "grad_norm", "mismatch/max", "trained_decisions")
    return [{name: line[name] for name in names} for line in lines if "loss" in line]


def run(folder, processes, settings):
    (folder / "reddish.py").write_text(REWARD)
    config = {
        "policy": {"name": "flow", "steps": 4, "evaluation_steps": 4, **settings},
        "algorithm": {"name": "flow_grpo", "beta": 0.5, "clip_low": 0.2},
        "prompts": {"name": "rows", "rows": ROWS, "held_out": 0.5},
        "rewards": ["reddish:redness"],
        "train": {"steps": 3, "groups_per_step": 3, "group_size": 4, "learning_rate": 1e-3},
        "evaluation": {"prompts": 3},
        "output": str(folder / "run"),
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--master-port=0"]
    launch += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command = [sys.executable, *launch, "-m", "groupwise", "train", str(folder / "run.yaml")]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        command,
        env=environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return losses(folder / "run"), json.loads((folder / "run" / "result.json").read_text())


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


@pytest.mark.parametrize(
    ("of", "settings"),
    [("flux with idle parts", {"gradient_checkpointing": True}), ("sd3", {"lora": {"rank": 2}})],
)
def test_two_processes_train_as_one(lab, tmp_path, of, settings):
    model = {"model": str(lab.folders[of]), "height": 16, "width": 16, "prompt_tokens": 12}
    found = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        found.append(run(folder, processes, {**model, **settings}))
    (alone, end), (shared, other) = found
    assert [line["trained_decisions"] for line in alone] == [3 * 4 * 3] * 3
    assert alone[-1]["kl"] > 0
    for one, two in zip(alone, shared, strict=True):
        assert two == pytest.approx(one, rel=2e-3, abs=1e-5)
    assert other["after"]["reward"] == pytest.approx(end["after"]["reward"], abs=1e-4)
    assert len(list((tmp_path / "2" / "run" / "samples" / "after").iterdir())) == 3
