"""A policy that is divided among processes trains as one that is not, and resumes on any number."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.core.launching import launch

from groupwise.errors import UserError
from groupwise.storage.checkpoint import Checkpoint, Checkpoints
from groupwise.storage.tensors import Stored, write

# Table rows: 8 among 3 processes are 3, 3 and 2.
RUNS = """
import json
from pathlib import Path
from contextlib import contextmanager
from accelerate import Accelerator
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from groupwise import processes
from groupwise.algorithms.dapo import DAPO
from groupwise.algorithms.grpo import GRPO
from groupwise.run import snapshot
from groupwise.storage.checkpoint import Checkpoints

def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

def half_dead(completions, prompts, **_):
    return [
        0.5 if int(p.split()[1]) % 2 else t.count("1") + 0.01 * len(t)
        for t, p in zip(completions, prompts, strict=True)
    ]

def policy_of(lab, sharded):
    class Divided(lab.Tabular):
        def shard(self, mesh):
            self.mesh = mesh
            fully_shard(self, mesh=mesh, reshard_after_forward=True)

        def sample(self, *rest, **more):
            if self.mesh is not None:
                self.unshard()
            drawn = super().sample(*rest, **more)
            if self.mesh is not None:
                self.reshard()
            return drawn

    policy = Divided(symbols=4)
    if sharded:
        policy.shard(processes.mesh(Accelerator(cpu=True)))
    return policy

CASES = {
    "kl": (lambda: GRPO(GRPO.Config(beta=0.05, entropy=0.01)), {"epochs": 2, "ema": 0.5}),
    "odd": (lambda: GRPO(GRPO.Config(beta=0.05)), {"groups_per_step": 5, "epochs": 2}),
    "alone": (GRPO, {"groups_per_step": 1}),
    "dapo": (DAPO, {"groups_per_step": 6, "max_refills": 3}),
    "updates": (GRPO, {"groups_per_step": 4, "updates_per_rollout": 2, "sample_batch": 4}),
}

def trainer_of(lab, name, sharded):
    algorithm, settings = CASES[name]
    reward = half_dead if name == "dapo" else lab.ones
    settings = {"steps": 4, "microbatch": 7, "max_grad_norm": 0.1, **settings}
    return lab.trainer(policy_of(lab, sharded), algorithm(), reward, **settings)

def facts(trainer, steps):
    policy, optimizer = trainer.policy, trainer.learner.optimizer
    averaged = trainer.learner.averaged
    keep = ("reward", "grad_norm", "loss", "kl", "mismatch/max", "trained_decisions")
    return {
        "table": whole(policy.table).flatten().tolist(),
        "moment": whole(optimizer.adamw.state[policy.table]["exp_avg"]).flatten().tolist(),
        "average": whole(policy.kept("average")["table"]).flatten().tolist() if averaged else [],
        "steps": [{key: step.get(key, 0.0) for key in keep} for step in steps],
        "evaluation": dict(trainer.evaluate().metrics),
    }

def together():
    accelerator = Accelerator(cpu=True)
    return accelerator.process_index, accelerator.num_processes

def go(lab, name, sharded, folder=None, save_at=None):
    trainer, steps = trainer_of(lab, name, sharded), []
    checkpoints = folder and Checkpoints(folder, process=together() if sharded else (0, 1))
    if folder and save_at is None:
        snapshot.restore(trainer, checkpoints.load())
    if save_at is not None:
        steps += [lab.step(trainer) for _ in range(save_at)]
        checkpoints.save(trainer.step, snapshot.take(trainer))
    else:
        assert lab.fit(trainer, lambda step, metrics: steps.append(metrics))
    return facts(trainer, steps)
"""
CHILD = """
import importlib.util, json, sys
torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location("lab", sys.argv[1])
lab = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lab)
folder = Path(sys.argv[2]).parent
found = {name: go(lab, name, True) for name in CASES}
go(lab, "kl", True, folder / "divided", save_at=2)
found["resumed"] = go(lab, "kl", True, folder / "whole")
accelerator = Accelerator(cpu=True)
full = "a full disk"
class Full(Exception): pass
try:
    Checkpoints(folder / "divided" / str(accelerator.process_index), process=together()).save(
        1, snapshot.take(trainer_of(lab, "alone", True))
    )
    found["apart"] = ""
except Exception as error:
    found["apart"] = str(error)
if accelerator.is_main_process:
    Path(sys.argv[2]).write_text(json.dumps(found))
accelerator.end_training()
"""


@pytest.fixture(scope="module")
def runs():
    """The functions that the script on several processes runs, here on one."""
    names = {}
    exec(RUNS, names)
    return names


@pytest.fixture(scope="module")
def three(lab, runs, tmp_path_factory):
    """What came out on three processes, and the folder with the checkpoints of both sides."""
    folder = tmp_path_factory.mktemp("three")
    runs["go"](lab, "kl", False, folder / "whole", save_at=2)
    return launch(RUNS + CHILD, folder, 3), folder


def compare(one, other):
    for name in ("table", "moment", "average"):
        assert one[name] == pytest.approx(other[name], rel=1e-9, abs=1e-12)
    assert one["evaluation"] == pytest.approx(other["evaluation"])
    for left, right in zip(one["steps"], other["steps"], strict=True):
        assert left == pytest.approx(right, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", ["kl", "odd", "alone", "dapo", "updates"])
def test_three_processes_that_share_the_weights_train_as_one(lab, runs, three, name):
    compare(three[0][name], runs["go"](lab, name, False))


def test_a_run_of_three_processes_goes_on_with_one(lab, runs, three, tmp_path):
    folder = shutil.copytree(three[1] / "divided", tmp_path / "divided", dirs_exist_ok=True)
    files = {path.name for path in (folder / "step_2").iterdir()}
    assert {f"weights.{rank}-of-3.safetensors" for rank in range(3)} <= files
    through = runs["go"](lab, "kl", False)
    resumed = runs["go"](lab, "kl", False, folder)
    compare({**through, "steps": through["steps"][2:]}, resumed)


def test_a_run_of_one_process_goes_on_with_three(lab, runs, three):
    through = runs["go"](lab, "kl", False)
    compare({**through, "steps": through["steps"][2:]}, three[0]["resumed"])


def test_a_piece_that_is_gone_is_no_checkpoint(lab, runs, three, tmp_path):
    folder = shutil.copytree(three[1] / "divided" / "step_2", tmp_path / "step_2")
    (folder / "weights.1-of-3.safetensors").unlink()
    with pytest.raises(UserError, match="none of them is whole"):
        Checkpoints(tmp_path).load()
    files = json.loads((folder / "files.json").read_text())
    del files["weights.1-of-3.safetensors"]
    (folder / "files.json").write_text(json.dumps(files))
    with pytest.raises(UserError, match="pieces of 'table' are missing"):
        Checkpoints(tmp_path).load()


def test_a_policy_that_cannot_be_sharded_says_so(lab):
    with pytest.raises(UserError, match=r"train\.shard: Tabular cannot be sharded"):
        lab.Tabular().shard(None)


def test_tensors_without_dimensions_and_without_numbers_are_read_whole(tmp_path):
    tensors = {"step": torch.tensor(3.0), "none": torch.zeros(0, 4), "some": torch.arange(4.0)}
    write(tmp_path, "state", tensors, (0, 1))
    stored = Stored([tmp_path / "state.safetensors"])
    for name, tensor in tensors.items():
        assert torch.equal(stored[name], tensor)
        assert torch.equal(stored.like(name, tensor), tensor)


def test_another_save_of_one_process_is_a_plain_file(tmp_path):
    """As safetensors of others reads it."""
    path = Checkpoints(tmp_path).save(1, Checkpoint(tensors={"weights": {}}, state={"step": 1}))
    assert {Path(p).name for p in path.iterdir()} == {
        "files.json",
        "state.json",
        "weights.safetensors",
    }
