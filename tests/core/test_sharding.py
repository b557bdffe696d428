"""A policy that is divided among processes trains as one that is not, and resumes on any number."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.core.launching import launch

from groupwise.errors import UserError
from groupwise.storage.checkpoint import Checkpoint, Checkpoints
from groupwise.storage.tensors import Stored, write

# Table rows: 8 among 3 processes are 3, 3 and 2.
RUNS = """
import json
from pathlib import Path
from contextlib import nullcontext
from unittest.mock import patch
from safetensors import SafetensorError
from accelerate import Accelerator
from accelerate.utils import gather_object
import torch
from torch import nn
import groupwise
import groupwise.errors
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from groupwise import processes
from groupwise.algorithms.dapo import DAPO
from groupwise.algorithms.grpo import GRPO
from groupwise.run import snapshot
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.tensors import Stored, write

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
ours = accelerator.process_index == 1

def failure(folder):
    checkpoint = snapshot.take(trainer_of(lab, "alone", True))
    try:
        Checkpoints(folder, process=together()).save(1, checkpoint)
    except Exception as error:
        return str(error)

found["apart"] = failure(folder / "apart" / str(accelerator.process_index))
full = SafetensorError("I/O error: No space left on device (os error 28)")
with patch("groupwise.storage.tensors.save_file", side_effect=full) if ours else nullcontext():
    found["full"] = failure(folder / "full")
class Odd(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} {other}")
def fails():
    raise Odd("a", "b")
try:
    processes.each(fails if ours else int)
except Exception as error:
    found["unsendable"] = str(error)
try:
    rows, file = {"name": "rows", "rows": [{"prompt": "1"}]}, folder / "child.py"
    groupwise.train(policy="tabular", prompts=rows, rewards=["ones"], output=str(file))
except groupwise.errors.UserError as error:
    found["place"] = gather_object([str(error)])
mesh = processes.mesh(accelerator)
parts = {
    "few": distribute_tensor(torch.arange(4.0).view(2, 2), mesh, [Shard(0)]),
    "none": distribute_tensor(torch.zeros(0, 4), mesh, [Shard(0)]),
    "empty": distribute_tensor(torch.zeros(4, 0), mesh, [Shard(0)]),
    "wide": distribute_tensor(torch.arange(14.0).view(2, 7), mesh, [Shard(1)]),
}
path = write(folder, "parts", parts, together())
wholes = {name: part.full_tensor() for name, part in parts.items()}
processes.first(lambda: write(folder, "wholes", wholes, (0, 1)))
for paths in (folder.glob("parts.*"), [folder / "wholes.safetensors"]):
    stored = Stored(paths)
    read = {name: stored.like(name, part).full_tensor() for name, part in parts.items()}
    assert all(torch.equal(read[name], wholes[name]) for name in wholes)
alone = lab.trainer(policy_of(lab, True), GRPO(), lab.ones, held_out=0.0)
found["none held out"] = dict(alone.evaluate().metrics)
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
    with pytest.raises(UserError, match="incomplete or damaged"):
        Checkpoints(tmp_path).load()
    files = json.loads((folder / "files.json").read_text())
    del files["weights.1-of-3.safetensors"]
    (folder / "files.json").write_text(json.dumps(files))
    with pytest.raises(UserError, match="pieces of 'table' are missing"):
        Checkpoints(tmp_path).load()


def test_what_fails_on_one_process_is_told_by_all(three):
    """Here by the first; the second failed. Nobody waits, and nothing is left on the disk."""
    told, folder = three
    assert "process 1 cannot see" in told["apart"]
    assert "No space left on device" in told["full"]
    assert told["unsendable"] == "Odd: a b"  # an error that cannot be sent to others as it is
    assert not [*(folder / "full").iterdir()]
    assert len(told["place"]) == 3
    assert all("child.py is a file" in place for place in told["place"])


def test_without_prompts_held_out_nobody_waits(three):
    assert three[0]["none held out"] == {}


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


@pytest.mark.parametrize(
    "place",
    [
        7,
        [4, 0, 0],
        [["a", 2], 0, 0],
        [[4, 2], 5, 0],
        [[4, 2], 0, 1],
        [[4, 3], 0, 0],
        [[6, 2], 0, 0],
    ],
    ids=str,
)
def test_a_piece_of_another_tensor_is_refused(tmp_path, place):
    """By what its header says; the second piece is rows 2 and 3 of [4, 2]."""
    for rank, header in enumerate((place, [[4, 2], 0, 2])):
        path = tmp_path / f"weights.{rank}-of-2.safetensors"
        save_file({"table": torch.ones(2, 2)}, path, metadata={"table": json.dumps(header)})
    with pytest.raises(
        ValueError, match=r"pieces of 'table' are missing|is no position of a piece"
    ):
        Stored(tmp_path.glob("*"))


def test_another_save_of_one_process_is_a_plain_file(tmp_path):
    """As safetensors of others reads it."""
    path = Checkpoints(tmp_path).save(1, Checkpoint(tensors={"weights": {}}, state={"step": 1}))
    assert {Path(p).name for p in path.iterdir()} == {
        "files.json",
        "state.json",
        "weights.safetensors",
    }
