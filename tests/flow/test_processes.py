"""A run on two processes, by DDP and sharded, gives the metrics of the run on one process."""

import json
from types import SimpleNamespace

import pytest
import torch
import yaml
from tests import rounding
from tests.core.launching import launch

import groupwise
from groupwise_flow.model import unused_parameters
from groupwise_flow.model.unused_parameters import unused

pytestmark = pytest.mark.slow

REWARD = """
from PIL import ImageStat

def redness(completions):
    means = [ImageStat.Stat(image).mean for image in completions]
    return [(red - (green + blue) / 2) / 255 for red, green, blue in means]
"""
JOB = """
import json, os, sys
from pathlib import Path
os.environ["ACCELERATE_USE_CPU"] = "true"
import groupwise
from groupwise.kit import processes
out = Path(sys.argv[2])
for arguments in json.loads((out.parent / "runs.json").read_text()):
    groupwise.train(**arguments, quiet=True)
if processes.accelerator().is_main_process:
    out.write_text("null")
"""
FLOW_GRPO = {"name": "flow_grpo", "beta": 0.5, "clip_low": 0.2}
WINDOW = {"kind": "random", "size": 2, "until": 1.0}
ROWS = [{"prompt": f"{letter} {animal}"} for letter in "abcdefgh" for animal in ("cat", "dog")]


CASES = {
    "full": ("flux with idle parts", {"gradient_checkpointing": True}, FLOW_GRPO),
    "lora": (
        "sd3",
        {"lora": {"rank": 2}, "shared_noise": True, "window": WINDOW, "batch": 4},
        FLOW_GRPO,
    ),
    "final latents": (
        "sd3",
        {"name": "forward_process", "lora": {"rank": 2}, "decisions": 2},
        {"name": "tests.flow.regress:Regress"},
    ),
}
TERMS = 1.0
"""The size of the terms of losses and KL, which may cancel."""
SHARDED = {
    "full": {"train.shard": True, "train.steps": 2},
    "lora": {"train.shard": True},
    "final latents": {"train.shard": True},
}


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    names = ("reward", "loss", "kl", "grad_norm", "trained_decisions")
    steps = [line for line in lines if "loss" in line]
    ratios = [{"ratio": 1 + line.get("mismatch/max", 0.0)} for line in steps]
    return [
        {name: line[name] for name in names} | ratio
        for line, ratio in zip(steps, ratios, strict=True)
    ]


def write_config(folder, lab, architecture, settings, algorithm):
    folder.mkdir()
    (folder / "reddish.py").write_text(REWARD)
    model = {
        "model": str(lab.folders[architecture]),
        "height": 16,
        "width": 16,
        "prompt_tokens": 12,
    }
    config = {
        "policy": {"name": "flow", "steps": 4, "evaluation_steps": 4, **model, **settings},
        "algorithm": algorithm,
        "prompts": {"name": "rows", "rows": ROWS, "held_out": 0.5},
        "rewards": ["reddish:redness"],
        "train": {"steps": 3, "groups_per_step": 3, "group_size": 4, "learning_rate": 1e-3},
        "evaluation": {"prompts": 3},
        "output": str(folder / "run"),
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))


def outcome(folder):
    """The metrics of a run's steps, and its last reward."""
    result = json.loads((folder / "run" / "result.json").read_text())
    return losses(folder / "run"), result["after"]["reward"]


@pytest.fixture(scope="module", params=list(CASES))
def alone(request, folders, tmp_path_factory):
    """A case, with the metrics of one process and what rounding explains of them."""
    lab, metrics = SimpleNamespace(folders=folders), []

    def run():
        folder = tmp_path_factory.mktemp("alone") / "one"
        write_config(folder, lab, *CASES[request.param])
        groupwise.train(folder / "run.yaml", quiet=True)
        metrics.append(outcome(folder))
        return metrics[-1]

    allowed = rounding.bounds(run, unit=TERMS, digits=6)
    steps, _ = metrics[0]
    assert [line["trained_decisions"] for line in steps] == [steps[0]["trained_decisions"]] * 3
    assert steps[-1]["kl"] > 0
    return SimpleNamespace(case=request.param, metrics=metrics[0], allowed=allowed)


@pytest.fixture(scope="module")
def two(folders, tmp_path_factory):
    """A folder of the runs of two processes, by DDP and sharded, named after the cases."""
    folder, lab, runs = tmp_path_factory.mktemp("two"), SimpleNamespace(folders=folders), []
    for case, made in CASES.items():
        for kind, more in (("ddp", {}), ("sharded", SHARDED[case])):
            home = folder / f"{case} {kind}"
            write_config(home, lab, *made)
            runs.append({"config": str(home / "run.yaml"), **more})
    (folder / "runs.json").write_text(json.dumps(runs))
    launch(JOB, folder, 2, limit=230, imports=["groupwise_flow.policy"])
    return folder


def compare(alone, folder):
    assert rounding.excess(alone.metrics, outcome(folder), alone.allowed) <= 1


def test_parameters_without_influence_get_a_gradient_of_zero(lab, monkeypatch):
    """In this model the text output of the last block is not used."""
    policy = lab.policy("flux with idle parts", gradient_checkpointing=True)
    rollouts = policy.sample(lab.rows, group_size=1, seeds=[1, 2])
    idle = unused(policy(rollouts).log_probs, policy.parameters())
    assert 0 < len(idle) < len(lab.trained(policy)) / 2
    policy(rollouts).log_probs.sum().backward()
    alone = lab.gradient(policy)
    assert all(p.grad is None for p in idle)
    policy.zero_grad()
    monkeypatch.setattr(unused_parameters, "_distributed", lambda: True)
    policy(rollouts).log_probs.sum().backward()
    assert all(not p.grad.any() for p in idle)
    assert torch.equal(lab.gradient(policy), alone)


@pytest.mark.rounding
def test_two_processes_train_as_one(alone, two):
    folder = two / f"{alone.case} ddp"
    compare(alone, folder)
    assert len(list((folder / "run" / "samples" / "after").iterdir())) == 3


@pytest.mark.rounding
def test_two_sharded_processes_train_as_one_and_one_process_resumes(alone, two):
    """One process has two groups and two held-out prompts, the other one of each."""
    folder = two / f"{alone.case} sharded"
    if alone.case == "full":
        assert len(losses(folder / "run")) == 2
        groupwise.train(folder / "run.yaml", resume=True, quiet=True)
    compare(alone, folder)
    saved = {path.name for path in (folder / "run" / "model").iterdir()}
    assert ("pytorch_lora_weights.safetensors" in saved) == (alone.case != "full")
