"""A sharded policy samples, computes log-probs, trains and saves as an unsharded one."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline
from tests.core.launching import launch
from torch import nn

from groupwise.kit.errors import UserError
from groupwise_flow.files import loading
from groupwise_flow.files.outline import without_weights
from groupwise_flow.files.sharding import read
from groupwise_flow.model.lora import add_lora
from groupwise_flow.model.sharding import blocks, weightless
from groupwise_flow.policy import FlowPolicy
from groupwise_flow.settings import Lora

pytestmark = pytest.mark.slow

JOB = Path(__file__).with_name("shard_job.py")
MODELS = ("sd3", "sd3.5", "flux with idle parts", "sd15 v")
COMPARED = (
    *("samples", "sampler log-probs", "log-probs", "gradient"),
    *("after a step", "reference", "average"),
)
"""What may differ by rounding: 1 is all that it explains."""
IN_THE_BOX = ("z_image", "qwen_image", "flux2_klein", "sana", "lumina2", "wan22")


@pytest.fixture(scope="module")
def three(folders, tmp_path_factory):
    """Measurements of three processes: shards of 16 rows are 6, 6 and 4, of 2 rows 1, 1 and 0."""
    return measured_by(3, folders, tmp_path_factory.mktemp("three"))


def measured_by(count, folders, root):
    for name in (*MODELS, *IN_THE_BOX):
        (root / name).symlink_to(folders[name])
    return launch(JOB.read_text(), root, count, limit=230, imports=["groupwise_flow.policy"])


@pytest.mark.rounding
@pytest.mark.parametrize("case", ["full", "lora", "flux", "bf16", "unet"])
def test_a_sharded_policy_has_the_same_weights_and_samples(three, case):
    """The weights, adapters included, are the same, and each process holds only its shard."""
    measured = three[case]
    assert measured["weights"] == 0
    assert measured["local share"] < 0.4
    assert max(measured["samples"], measured["sampler log-probs"]) <= 1


@pytest.mark.rounding
@pytest.mark.parametrize("case", ["full", "lora", "flux", "unet"])
def test_a_sharded_policy_has_the_same_gradient_and_update(three, case):
    measured = three[case]
    assert max(measured[part] for part in ("log-probs", "gradient", "after a step")) <= 1
    assert -measured["negative change"] > 1e-3


@pytest.mark.rounding
@pytest.mark.parametrize("case", ["full", "lora", "flux"])
def test_kept_weights_are_sharded_too(three, case):
    measured = three[case]
    assert max(measured["reference"], measured["average"]) <= 1
    assert measured["back"] == 0


@pytest.mark.rounding
@pytest.mark.parametrize("model", IN_THE_BOX)
def test_the_models_in_the_box_are_the_same_when_sharded(three, model):
    measured = three[model]
    parts = ("samples", "sampler log-probs", "log-probs", "gradient")
    assert max(measured[part] for part in parts) <= 1
    assert not measured["no gradient"]
    assert measured["local share"] < 0.45


@pytest.mark.rounding
def test_two_copies_of_two_shards_are_as_an_unsharded_policy(folders, tmp_path):
    measured = measured_by(4, folders, tmp_path)["lora"]
    assert measured["weights"] == measured["passes apart"] == measured["back"] == 0
    assert 0.4 < measured["local share"] < 0.6
    assert max(measured[part] for part in COMPARED) <= 1
    assert -measured["negative change"] > 1e-3
    assert measured["difference when saved"] == 0


def test_all_processes_make_equally_many_passes(three):
    """Windows start at different steps on each process, so unsharded policies differ in passes."""
    assert three["full"]["uneven passes"] > 0
    cases = [measured for name, measured in three.items() if name not in IN_THE_BOX]
    assert all(measured["passes apart"] == 0 for measured in cases)
    # Where they have no gradient, unconditional velocities are reused until the weights change.
    passes = [
        [three[c][n] for n in ("passes", "passes by other weights")] for c in ("full", "lora")
    ]
    assert passes == [[2, 2], [1, 2]]


@pytest.mark.rounding
@pytest.mark.parametrize("case", ["full", "lora", "flux"])
def test_a_sharded_policy_saves_the_same_weights(three, case):
    if case == "flux":  # shards with an index, which both kinds read
        assert three[case]["files"] > 2
        assert three[case]["difference when saved"] <= 1  # of the log-probs of both
    else:
        assert three[case]["difference when saved"] == 0


@pytest.mark.rounding
def test_the_rounding_error_is_the_same(three):
    assert three["bf16"]["rounding"] < 0.1


def test_the_model_is_built_without_memory_for_its_weights(lab):
    """Only the adapters beside it are allocated."""
    part = ["diffusers", "SD3Transformer2DModel"]
    model = without_weights(str(lab.folders["sd3"]), "transformer", part, torch.bfloat16)
    weights = list(model.parameters())
    assert all(p.is_meta and p.dtype == torch.bfloat16 for p in weights)
    assert not any(buffer.is_meta for buffer in model.buffers())
    with weightless(model):
        assert all(p.untyped_storage().nbytes() == 2 for p in model.parameters())
        add_lora(model, Lora(rank=2), ["attn.to_q"])
    adapters = [p for p in model.parameters() if p.requires_grad]
    assert len(adapters) == 4
    assert all(p.untyped_storage().nbytes() == 4 * p.numel() for p in adapters)
    assert all(p.is_meta and not p.requires_grad for p in weights)


# ---- what cannot be sharded


def test_models_that_cannot_be_sharded_are_refused(lab, tmp_path):
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


def test_models_that_diffusers_reads_again_are_refused(lab, monkeypatch):
    """Else they would be whole, and each process would train on its own gradient."""
    monkeypatch.setattr(loading, "pipeline_class", lambda index: DiffusionPipeline)
    with pytest.raises(
        UserError, match=r"train\.shard: DiffusionPipeline .* takes no 'transformer'"
    ):
        loading.load(lab.settings("wan21"), mesh=object())


def test_a_model_without_blocks_is_refused():
    with pytest.raises(UserError, match="Sequential has no blocks to shard"):
        blocks(nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])))


def test_blocks_are_module_lists_of_one_class_unless_they_are_named():
    layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)) for _ in range(3)])
    model = nn.ModuleDict({"into": nn.Linear(2, 2), "layers": layers})
    assert blocks(model) == list(layers)


def test_weights_of_another_shape_are_refused_by_name(lab):
    (file,) = (lab.folders["sd3"] / "transformer").glob("*.safetensors")
    with pytest.raises(ValueError, match="its files hold no weights 'bias'"):
        read(nn.Linear(2, 2, device="meta"), [file], "cpu")
    model = nn.ModuleDict({"proj_out": nn.Linear(3, 16, device="meta")})
    with pytest.raises(
        ValueError, match=r"'proj_out.weight' is \[16, 16\] in .* makes it \[16, 3\]"
    ):
        read(model, [file], "cpu")


def test_sharding_a_policy_with_loaded_weights_is_refused(lab):
    with pytest.raises(ValueError, match="call it before `place`"):
        lab.policy().shard(None)
