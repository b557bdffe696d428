"""A policy that is divided among processes samples, answers, learns and saves as a whole one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from groupwise.errors import UserError
from groupwise_flow.lora import add_lora
from groupwise_flow.policy import FlowPolicy
from groupwise_flow.settings import Lora
from groupwise_flow.sharding import blocks, read, weightless
from groupwise_flow.skeleton import weight_files, without_weights

JOB = Path(__file__).with_name("shard_job.py")
MODELS = ("sd3", "sd3.5", "flux with idle parts")


@pytest.fixture(scope="module")
def three(folders, tmp_path_factory):
    """What three processes found: rows of 16 among them are 6, 6 and 4, LoRA's of 2 are 1, 1, 0."""
    root = tmp_path_factory.mktemp("three")
    for name in MODELS:
        (root / name).symlink_to(folders[name])
    done = subprocess.run(
        [sys.executable, str(JOB), str(root), "3"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((root / "found.json").read_text())


@pytest.mark.parametrize("case", ["full", "lora", "flux", "bf16"])
def test_it_starts_and_samples_alike(three, case):
    """The same weights, adapters too, of which no process holds more than its part."""
    found = three[case]
    assert found["weights"] == 0
    assert found["held"] < 0.4
    assert max(found["samples"], found["said"]) < 1e-5


@pytest.mark.parametrize("case", ["full", "lora", "flux"])
def test_it_learns_alike(three, case):
    found = three[case]
    assert found["log-probs"] < 1e-5
    assert found["gradient"] < 1e-5
    assert found["after a step"] < 1e-4 < -found["unmoved"]


@pytest.mark.parametrize("case", ["full", "lora", "flux"])
def test_kept_weights_are_divided_too(three, case):
    found = three[case]
    assert max(found["reference"], found["average"]) < 1e-4
    assert found["back"] == 0


def test_all_processes_make_equally_many_passes(three):
    """Groups share noise until windows that start elsewhere on each: whole policies differ."""
    assert three["full"]["uneven passes"] > 0
    assert all(found["passes apart"] == 0 for found in three.values())
    # The unconditional branch is known until the weights change.
    assert [three["full"][n] for n in ("passes", "passes by other weights")] == [1, 2]


@pytest.mark.parametrize("case", ["full", "lora", "flux"])
def test_what_it_saves_is_what_a_whole_one_saves(three, case):
    assert three[case]["saved"] < 1e-5
    assert case != "flux" or three[case]["files"] > 2  # with an index, read by both kinds


def test_rounding_is_measured_alike(three):
    assert three["bf16"]["rounding"] < 1e-7


def test_no_process_makes_all_of_it(lab):
    """The structure takes no memory, though adapters beside it are made for real."""
    part = ["diffusers", "SD3Transformer2DModel"]
    model = without_weights(str(lab.folders["sd3"]), "transformer", part, torch.bfloat16)
    bare = list(model.parameters())
    assert all(p.is_meta and p.dtype == torch.bfloat16 for p in bare)
    assert not any(buffer.is_meta for buffer in model.buffers())
    with weightless(model):
        assert all(p.untyped_storage().nbytes() == 2 for p in model.parameters())
        add_lora(model, Lora(rank=2), ["attn.to_q"])
    adapters = [p for p in model.parameters() if p.requires_grad]
    assert len(adapters) == 4
    assert all(p.untyped_storage().nbytes() == 4 * p.numel() for p in adapters)
    assert all(p.is_meta and not p.requires_grad for p in bare)


# ---- what cannot be divided


def test_what_cannot_be_divided_is_refused(lab, tmp_path):
    dora = {"rank": 2, "options": {"use_dora": True}}
    refused(lab, "use_dora is initialised from the norms of whole weights", lora=dora)
    refused(lab, "policy.loading.device_map", loading={"device_map": "balanced"})
    folder = tmp_path / "model"
    shutil.copytree(lab.folders["sd3"], folder)
    path = folder / "transformer" / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": {"quant_method": "torchao"}}
    path.write_text(json.dumps(config))
    refused(lab, "'transformer' of .* is quantised", model=str(folder))
    index = json.loads((folder / "model_index.json").read_text())
    index["transformer"] = ["somewhere", "Transformer"]
    (folder / "model_index.json").write_text(json.dumps(index))
    refused(lab, "which is no model of diffusers; leave train.shard out", model=str(folder))


def refused(lab, message, **settings):
    with pytest.raises(UserError, match=message):
        FlowPolicy(lab.settings(**settings)).shard(None)


def test_a_model_without_blocks_is_refused():
    with pytest.raises(UserError, match="Sequential has no blocks to shard"):
        blocks(nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])))


def test_blocks_are_lists_of_one_class_where_none_are_named():
    layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)) for _ in range(3)])
    model = nn.ModuleDict({"into": nn.Linear(2, 2), "layers": layers})
    assert blocks(model) == list(layers)


def test_weights_that_do_not_fit_are_told_by_name(lab):
    (file,) = weight_files(lab.folders["sd3"] / "transformer")
    with pytest.raises(ValueError, match="its files hold no weights 'bias'"):
        read(nn.Linear(2, 2, device="meta"), [file], "cpu")
    model = nn.ModuleDict({"proj_out": nn.Linear(3, 16, device="meta")})
    with pytest.raises(
        ValueError, match=r"'proj_out.weight' is \[16, 16\] in .* makes it \[16, 3\]"
    ):
        read(model, [file], "cpu")


def test_it_is_divided_before_its_weights_are_read(lab):
    with pytest.raises(ValueError, match="call it before `place`"):
        lab.policy().shard(None)
