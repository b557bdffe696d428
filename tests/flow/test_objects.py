"""A pipeline of diffusers that is passed as an object is trained in place, as from its files."""

import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file

import groupwise
from groupwise.kit.errors import UserError
from groupwise.storage.checkpoint import Checkpoints
from groupwise_flow.files.loading import load
from groupwise_flow.policy import FlowPolicy


def train(lab, folder, policy, **options):
    return groupwise.train(
        policy=policy,
        prompts=[{"prompt": f"a red disk {n}"} for n in range(4)],
        rewards=[lab.redness],
        algorithm="flow_grpo",
        train={"steps": 1, "groups_per_step": 1, "group_size": 2, "learning_rate": 1e-2},
        evaluation={"prompts": 0},
        output=folder,
        quiet=True,
        **{"policy.steps": 3, "policy.height": 16, "policy.width": 16, **options},
    )


@pytest.mark.parametrize("precision", ["fp16", "bf16", "float32"])
def test_its_weights_have_the_dtypes_of_its_folder(lab, precision):
    """T5's `wo` is float32 in a model of fp16; `to` would cast it, and it overflows."""
    folder = str(lab.folders["sd3"])
    settings = {"precision": precision, "lora": {"rank": 2}}
    read = load(FlowPolicy.Config(model=folder, **settings))
    pipeline = DiffusionPipeline.from_pretrained(folder)
    given = load(FlowPolicy.Config(model=pipeline, **settings))
    ours, theirs = (
        {
            f"{part}.{name}": tensor.dtype
            for part, module in adapter.pipeline.components.items()
            if isinstance(module, torch.nn.Module)
            for name, tensor in module.state_dict().items()
        }
        for adapter in (given, read)
    )
    assert ours == theirs
    of_t5 = {dtype for name, dtype in ours.items() if ".wo." in name and "text_encoder_3" in name}
    assert of_t5 == {torch.bfloat16 if precision == "bf16" else torch.float32}


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["full", "lora"])
def test_the_run_is_that_of_its_folder(lab, tmp_path, lora):
    folder = str(lab.folders["sd3"])
    pipeline = DiffusionPipeline.from_pretrained(folder)
    options = {} if lora is None else {"policy.lora": lora}
    read = train(lab, tmp_path / "read", {"name": "flow", "model": folder}, **options)
    given = train(lab, tmp_path / "given", pipeline, **options)
    assert read.metrics["reward"] == given.metrics["reward"]
    ours, theirs = (run.policy.state_dict() for run in (read, given))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert given.policy.adapter.pipeline is pipeline
    if lora is not None:
        with pytest.raises(UserError, match="of the pipeline has adapters already"):
            train(lab, tmp_path / "again", pipeline)
    with pytest.raises(UserError, match="`encoders: cached` read the pipeline from files"):
        train(lab, tmp_path / "cached", pipeline, **{"policy.encoders": "cached"})


def test_with_an_average_the_pipeline_in_hand_is_the_one_that_is_saved(lab, tmp_path):
    pipeline = DiffusionPipeline.from_pretrained(lab.folders["sd3"])
    options = {"train.ema": 0.9, "train.learning_rate": 1e-2}
    train(lab, tmp_path / "run", pipeline, **options)
    saved = DiffusionPipeline.from_pretrained(tmp_path / "run" / "model")
    ours, theirs = (each.transformer.state_dict() for each in (pipeline, saved))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    last = Checkpoints(tmp_path / "run" / "checkpoints").last() / "weights.safetensors"
    assert any(not torch.equal(ours[k.partition(".")[2]], v) for k, v in load_file(last).items())
