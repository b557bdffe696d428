"""A sharded policy trains as an unsharded one, and resumes on any number of processes."""

import hashlib
import json
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests import rounding
from tests.core.launching import launch

from groupwise.kit.errors import UserError
from groupwise.kit.processes import shards
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.staging import Checkpoint

pytestmark = pytest.mark.slow

# The table has 8 rows: 3, 3 and 2 on three processes.
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
import groupwise.kit.errors
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from groupwise.kit import processes
from groupwise_algorithms.dapo import DAPO
from groupwise.algorithms.grpo import GRPO
from groupwise.recording import snapshot
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.staging import Checkpoint

def gathered(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

def half_dead(completions, prompts, **_):
    return [
        0.5 if int(p.split()[1]) % 2 else t.count("1") + 0.01 * len(t)
        for t, p in zip(completions, prompts, strict=True)
    ]

def policy_of(lab, sharded, frozen=0):
    class Sharded(lab.Tabular):
        def __init__(self, **options):
            super().__init__(**options)
            self.frozen = nn.Parameter(torch.zeros(frozen, 1), requires_grad=False)

        def shard(self, mesh):
            self.mesh = mesh
            fully_shard(self, mesh=mesh, reshard_after_forward=True)

        def sample(self, *args, **options):
            if self.mesh is not None:
                self.unshard()
            rollouts = super().sample(*args, **options)
            if self.mesh is not None:
                self.reshard()
            return rollouts

    policy = Sharded(symbols=4)
    if sharded:
        policy.shard(processes.mesh(Accelerator(cpu=True), sharded))
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

def average_of(trainer):
    return gathered(trainer.learner.weights.copies("average")["table"]).flatten().tolist()

def results_of(trainer, steps):
    policy, optimizer = trainer.policy, trainer.learner.optimizer
    averaged = trainer.learner.averaged
    keep = ("reward", "grad_norm", "loss", "kl", "mismatch/max", "trained_decisions")
    return {
        "table": gathered(policy.table).flatten().tolist(),
        "moment": gathered(optimizer.adamw.state[policy.table]["exp_avg"]).flatten().tolist(),
        "average": average_of(trainer) if averaged else [],
        "steps": [{key: step.get(key, 0.0) for key in keep} for step in steps],
        "evaluation": dict(trainer.evaluate().metrics),
    }

def rank_and_count():
    accelerator = Accelerator(cpu=True)
    return accelerator.process_index, accelerator.num_processes

def train(lab, name, sharded, folder=None, save_at=None):
    trainer, steps = trainer_of(lab, name, sharded), []
    checkpoints = folder and Checkpoints(folder, process=rank_and_count() if sharded else (0, 1))
    if folder and save_at is None:
        snapshot.restore(trainer, checkpoints.load())
    if save_at is not None:
        steps += [lab.step(trainer) for _ in range(save_at)]
        checkpoints.save(trainer.step, snapshot.take(trainer))
    else:
        assert lab.fit(trainer, lambda step, metrics: steps.append(metrics))
    return results_of(trainer, steps)

def reductions(lab, frozen, budget, sharded=True):
    # Reductions of gradients in a step of one update among shards and among copies, and the
    # micro-batches of this process.
    policy = policy_of(lab, sharded, frozen)
    passes = []
    trainer = lab.trainer(policy, GRPO(), lab.ones, steps=1, microbatch=budget)
    policy.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    with CommDebugMode() as counts:
        lab.fit(trainer)
    by_name = {str(op): n for op, n in counts.get_comm_counts().items()}
    kinds = ("reduce_scatter", "c10d.allreduce_")
    scattered, summed = (sum(n for op, n in by_name.items() if kind in op) for kind in kinds)
    return scattered, summed, sum(passes)

import importlib.util, json, sys
torch.set_num_threads(1)

def started():
    spec = importlib.util.spec_from_file_location("lab", sys.argv[1])
    lab = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lab)
    return lab, Path(sys.argv[2]).parent
"""
CHILD = """
lab, folder = started()
results = {name: train(lab, name, True) for name in CASES}
train(lab, "kl", True, folder / "sharded", save_at=2)
results["resumed"] = train(lab, "kl", True, folder / "unsharded")
accelerator = Accelerator(cpu=True)
fails_here = accelerator.process_index == 1

def failure(folder):
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = snapshot.take(trainer_of(lab, "alone", True))
    try:
        Checkpoints(folder, process=rank_and_count()).save(1, checkpoint)
    except Exception as error:
        return str(error)

results["separate folders"] = failure(folder / "separate" / str(accelerator.process_index))
error = SafetensorError("I/O error: No space left on device (os error 28)")
full_disk = patch("groupwise.storage.tensors.save_file", side_effect=error)
with full_disk if fails_here else nullcontext():
    results["full"] = failure(folder / "full")
class Odd(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} {other}")
def fails():
    raise Odd("a", "b")
try:
    processes.each(fails if fails_here else int)
except Exception as error:
    results["unsendable"] = str(error)
try:
    rows, file = {"name": "rows", "rows": [{"prompt": "1"}]}, folder / "child.py"
    groupwise.train(policy="tabular", prompts=rows, rewards=["ones"], output=str(file))
except groupwise.kit.errors.UserError as error:
    results["output"] = gather_object([str(error)])
mesh = processes.mesh(accelerator)
parts = {
    "few": distribute_tensor(torch.arange(4.0).view(2, 2), mesh, [Shard(0)]),
    "none": distribute_tensor(torch.zeros(0, 4), mesh, [Shard(0)]),
    "empty": distribute_tensor(torch.zeros(4, 0), mesh, [Shard(0)]),
    "wide": distribute_tensor(torch.arange(14.0).view(2, 7), mesh, [Shard(1)]),
}
sharded, full = Checkpoints(folder / "parts", process=rank_and_count()), Checkpoints(folder / "all")
full_tensors = {name: part.full_tensor() for name, part in parts.items()}
sharded.save(1, Checkpoint(tensors={"parts": parts}, state={}))
processes.first(lambda: full.save(1, Checkpoint(tensors={"parts": full_tensors}, state={})))
for checkpoints in (sharded, full):
    stored = checkpoints.load().tensors["parts"]
    tensors = {name: stored.like(name, part).full_tensor() for name, part in parts.items()}
    assert all(torch.equal(tensors[name], full_tensors[name]) for name in full_tensors)
unevaluated = lab.trainer(policy_of(lab, True), GRPO(), lab.ones, held_out=0.0)
results["reductions"] = {
    case: [reductions(lab, frozen, budget) for budget in (10**6, 7)]
    for case, frozen in (("full", 0), ("adapters", 10_000))
}
results["none held out"] = dict(unevaluated.evaluate().metrics)
if accelerator.is_main_process:
    Path(sys.argv[2]).write_text(json.dumps(results))
accelerator.end_training()
"""
COPIES = """
import os
lab, folder = started()
results = {"kl": train(lab, "kl", 2)}
for name, local in (("updates", "2"), ("odd", "1")):
    os.environ["LOCAL_WORLD_SIZE"] = local
    results[name] = train(lab, name, "node")
train(lab, "kl", 2, folder / "copies", save_at=2)
results["from one process"] = train(lab, "kl", 2, folder / "unsharded")
results["among all four"] = train(lab, "kl", True, folder / "copies")
results["reductions"] = {
    case: [reductions(lab, frozen, budget, 2) for budget in (10**6, 7)]
    for case, frozen in (("full", 0), ("adapters", 10_000))
}
if rank_and_count()[0] == 0:
    Path(sys.argv[2]).write_text(json.dumps(results))
Accelerator(cpu=True).end_training()
"""


@pytest.fixture(scope="module")
def runs():
    """The functions of the script, to run them on one process."""
    namespace = {}
    exec(RUNS, namespace)
    return namespace


@pytest.fixture(scope="module")
def three(lab, runs, tmp_path_factory):
    """Results of three processes, and the folder with sharded and unsharded checkpoints."""
    folder = tmp_path_factory.mktemp("three")
    runs["train"](lab, "kl", False, folder / "unsharded", save_at=2)
    return launch(RUNS + CHILD, folder, 3), folder


@pytest.fixture(scope="module")
def copies(lab, runs, tmp_path_factory):
    """Results of four processes, of which each two hold all weights ("odd": each one), and the
    same folder."""
    folder = tmp_path_factory.mktemp("copies")
    runs["train"](lab, "kl", False, folder / "unsharded", save_at=2)
    return launch(RUNS + COPIES, folder, 4), folder


@pytest.fixture(scope="module")
def compare(lab, runs):
    """compare(name, *results, since=N): results are those of one process, but for rounding, of
    whose steps the first N are left out."""

    @cache
    def alone(name, since):
        """The results of one process, and what rounding explains of each number."""

        def run():
            result = runs["train"](lab, name, False)
            return comparable({**result, "steps": result["steps"][since:]})

        expected = run()
        # The terms of losses and KL, of about 1, may cancel.
        return expected, rounding.bounds(run, result=expected, unit=1.0)

    def same(name, *results, since=0):
        expected, allowed = alone(name, since)
        for result in results:
            assert rounding.excess(expected, comparable(result), allowed) <= 1

    return same


def comparable(result):
    """Tables and metrics; a ratio's distance from one counts beside one."""
    names = ("table", "moment", "average")
    tables = [torch.tensor(result[name], dtype=torch.float64) for name in names]
    steps = [{**step, "mismatch/max": 1 + step["mismatch/max"]} for step in result["steps"]]
    return tables, result["evaluation"], steps


@pytest.mark.rounding
@pytest.mark.parametrize("name", ["kl", "odd", "alone", "dapo", "updates"])
def test_three_processes_with_sharded_weights_train_as_one(compare, three, name):
    compare(name, three[0][name])


def test_gradients_of_adapters_are_reduced_once_an_update(three):
    """Those of a full model in every micro-batch: whole gradients would take too much memory."""
    whole, cut = three[0]["reductions"]["adapters"]
    assert cut[-1] > whole[-1] == 1
    assert (whole[0], cut[0]) == (1, 1)
    whole, cut = three[0]["reductions"]["full"]
    assert (whole[0], cut[0]) == (1, cut[-1])


@pytest.mark.rounding
def test_a_run_of_three_processes_resumes_with_one(lab, runs, compare, three, tmp_path):
    folder = shutil.copytree(three[1] / "sharded", tmp_path / "sharded", dirs_exist_ok=True)
    files = {path.name for path in (folder / "step_2").iterdir()}
    assert {f"weights.{rank}-of-3.safetensors" for rank in range(3)} <= files
    compare("kl", runs["train"](lab, "kl", False, folder), since=2)


@pytest.mark.rounding
def test_a_run_of_one_process_resumes_with_three(compare, three):
    compare("kl", three[0]["resumed"], since=2)


@pytest.mark.rounding
@pytest.mark.parametrize("name", ["kl", "updates", "odd"])
def test_copies_train_as_one_process(compare, copies, name):
    compare(name, copies[0][name])


def test_copies_reduce_gradients_once_an_update(copies):
    """Shards of a full model in every micro-batch, as without copies."""
    for case, often in (("full", True), ("adapters", False)):
        whole, cut = copies[0]["reductions"][case]
        assert cut[-1] > whole[-1] == 1
        assert (whole[0], cut[0]) == (1, cut[-1] if often else 1)
        assert whole[1] == cut[1] == 1


@pytest.mark.rounding
def test_checkpoints_resume_with_and_without_copies(lab, runs, compare, copies):
    results, folder = copies
    files = {path.name for path in (folder / "copies" / "step_2").glob("weights*")}
    assert files == {"weights.0-of-4.safetensors", "weights.1-of-4.safetensors"}
    alone = runs["train"](lab, "kl", False, folder / "copies")
    compare("kl", results["from one process"], results["among all four"], alone, since=2)


def test_processes_among_which_weights_are_divided(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert [shards(shard, 8) for shard in (False, True, 2, 4, 16)] == [1, 8, 2, 4, 8]
    assert shards("node", 1) == 1
    with pytest.raises(UserError, match=r"train\.shard: 3: 8 processes .* a divisor of 8, or"):
        shards(3, 8)
    with pytest.raises(UserError, match=r"LOCAL_WORLD_SIZE, .* set train\.shard to that number"):
        shards("node", 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert [shards("node", world) for world in (4, 8)] == [4, 4]


def test_a_checkpoint_with_a_missing_shard_is_refused(lab, runs, three, tmp_path):
    folder = shutil.copytree(three[1] / "sharded" / "step_2", tmp_path / "step_2")
    (folder / "weights.1-of-3.safetensors").unlink()
    with pytest.raises(UserError, match="incomplete or damaged"):
        Checkpoints(tmp_path).load()
    files = json.loads((folder / "files.json").read_text())
    del files["weights.1-of-3.safetensors"]
    (folder / "files.json").write_text(json.dumps(files))
    with pytest.raises(UserError, match="pieces of 'table' are missing"):
        Checkpoints(tmp_path).load()


def test_a_failure_on_one_process_is_reported_on_all(three):
    """Process 1 fails, and process 0 reports it: no process waits, and no file remains."""
    results, folder = three
    assert "process 1 cannot see" in results["separate folders"]
    assert "No space left on device" in results["full"]
    assert results["unsendable"] == "Odd: a b"  # an error that cannot be pickled
    assert not [*(folder / "full").iterdir()]
    assert len(results["output"]) == 3
    assert all("child.py is a file" in error for error in results["output"])


def test_without_held_out_prompts_an_evaluation_is_empty_on_all_processes(three):
    assert three[0]["none held out"] == {}


def test_a_policy_that_cannot_be_sharded_is_refused(lab):
    with pytest.raises(UserError, match=r"train\.shard: Tabular cannot be sharded"):
        lab.Tabular().shard(None)


def test_scalar_and_empty_tensors_can_be_stored(tmp_path):
    tensors = {"step": torch.tensor(3.0), "none": torch.zeros(0, 4), "some": torch.arange(4.0)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, Checkpoint(tensors={"some": tensors}, state={}))
    stored = checkpoints.load().tensors["some"]
    for name, tensor in tensors.items():
        assert torch.equal(stored[name], tensor)
        assert torch.equal(stored.like(name, tensor), tensor)


@pytest.mark.parametrize(
    "position",
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
def test_a_shard_with_a_wrong_header_is_refused(tmp_path, position):
    """A shard whose header is wrong; the other one has rows 2 and 3 of [4, 2]."""
    folder = Checkpoints(tmp_path).save(1, Checkpoint(tensors={}, state={}))
    files = json.loads((folder / "files.json").read_text())
    for rank, header in enumerate((position, [[4, 2], 0, 2])):
        path = folder / f"weights.{rank}-of-2.safetensors"
        save_file({"table": torch.ones(2, 2)}, path, metadata={"table": json.dumps(header)})
        content = path.read_bytes()
        files[path.name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "files.json").write_text(json.dumps(files))
    with pytest.raises(UserError, match=r"pieces of 'table' are missing|is no position of a piece"):
        Checkpoints(tmp_path).load()


def test_one_process_writes_plain_safetensors_files(tmp_path):
    path = Checkpoints(tmp_path).save(1, Checkpoint(tensors={"weights": {}}, state={"step": 1}))
    assert {Path(p).name for p in path.iterdir()} == {
        "files.json",
        "state.json",
        "weights.safetensors",
    }
