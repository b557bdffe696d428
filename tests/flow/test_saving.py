"""Saved models load into diffusers' pipelines; checkpoints restore the policy exactly."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file

from groupwise.kit.errors import UserError
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.saved import read_weights, trained_weights
from groupwise.storage.staging import Checkpoint

SEEDS = [5, 6]


def evaluated(lab, policy):
    return lab.images_of(policy.sample(lab.rows, group_size=1, seeds=SEEDS, purpose="evaluate"))


def loaded(folder, architecture):
    absent = {"text_encoder_3": None, "tokenizer_3": None} if "without" in architecture else {}
    return DiffusionPipeline.from_pretrained(folder, **absent)


@pytest.mark.parametrize("architecture", ["sd3", "sd3 without t5", "sd3.5", "flux", "sdxl"])
@pytest.mark.slow(after=1)
def test_full_training_saves_a_pipeline(lab, architecture, tmp_path, rounding):
    policy = lab.policy(architecture, guidance=2.0)
    start = evaluated(lab, policy)
    lab.nudge(policy)
    policy.save_pretrained(tmp_path / "model")
    images = lab.pipelines_images(loaded(tmp_path / "model", architecture), policy, lab.rows, SEEDS)
    rounding.same(lambda: evaluated(lab, policy), images)
    assert (images - start).abs().max() > 0.01
    again = lab.policy(architecture, guidance=2.0, model=str(tmp_path / "model"))
    # Not bit for bit: on some processors sums depend on where in memory the weights lie.
    rounding.same(lambda: evaluated(lab, again), evaluated(lab, policy))


LORA = [
    ("sd3", {"rank": 2}),
    ("sd3.5", {"rank": 2, "alpha": 6}),
    ("flux", {"rank": 3, "alpha": 1}),
    ("sdxl", {"rank": 2}),
    ("sd15 v", {"rank": 2, "alpha": 1}),
    ("sd3", {"rank": 2, "targets": ["attn.to_q", "ff.net.2"], "options": {"use_rslora": True}}),
    ("sd3", {"rank": 2, "options": {"use_dora": True}}),
    ("sd3", {"rank": 2, "options": {"rank_pattern": {"to_q": 3}, "alpha_pattern": {"to_q": 1.5}}}),
]


@pytest.mark.parametrize(("architecture", "lora"), LORA)
@pytest.mark.slow(after=1)
def test_a_saved_lora_loads_into_a_fresh_pipeline(lab, architecture, lora, tmp_path, rounding):
    """From the folder, and as tensors alone, where alpha is taken to be the rank."""
    policy = lab.policy(architecture, lora=lora, guidance=2.0)
    start = evaluated(lab, policy)
    lab.nudge(policy, size=0.3)
    policy.save_pretrained(tmp_path / "model")
    (file,) = (tmp_path / "model").iterdir()
    assert file.stat().st_size < 100_000
    expected = evaluated(lab, policy)
    allowed = rounding.bounds(lambda: evaluated(lab, policy))
    for source in (tmp_path / "model", load_file(file)):
        pipeline = loaded(lab.folders[architecture], architecture)
        plain = lab.pipelines_images(pipeline, policy, lab.rows, SEEDS)
        assert rounding.excess(plain, start, allowed) <= 1
        pipeline.load_lora_weights(source)
        images = lab.pipelines_images(pipeline, policy, lab.rows, SEEDS)
        assert rounding.excess(images, expected, allowed) <= 1
    assert (expected - start).abs().max() > 0.01


UNETS = [
    ("sd15", {"rank": 2, "alpha": 3, "targets": ["to_q", "conv1", "proj_in"]}),
    ("sdxl", {"rank": 2, "options": {"rank_pattern": {"to_q": 3}}}),
]


@pytest.mark.parametrize(("architecture", "lora"), UNETS)
def test_the_docs_convert_the_adapters_of_a_unet_to_the_names_of_kohya(
    lab, architecture, lora, tmp_path, monkeypatch, rounding
):
    """`lora_unet_`, the layer's name with underscores: `model_lora_keys_unet` in ComfyUI's
    comfy/lora.py. A layer's change is (alpha / rank) up down."""
    policy = lab.policy(architecture, lora=lora)
    lab.nudge(policy, size=0.3)
    policy.save_pretrained(tmp_path / "runs/sdxl/model")
    page = (Path(__file__).parents[2] / "docs/flow.md").read_text(encoding="utf-8")
    (code,) = [c for c in re.findall(r"```python[^\n]*\n(.*?)```", page, re.S) if "kohya" in c]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    weights, names = load_file("sdxl_lora.safetensors"), set()
    for name, layer in policy.adapter.model.named_modules():
        if not hasattr(layer, "lora_A"):
            continue
        key = f"lora_unet_{name.replace('.', '_')}"
        down, up = weights[f"{key}.lora_down.weight"], weights[f"{key}.lora_up.weight"]
        scale = float(weights[f"{key}.alpha"]) / len(down)
        change = scale * (up.flatten(1) @ down.flatten(1)).view_as(layer.base_layer.weight)
        rounding.same(partial(layer.get_delta_weight, "default"), change)
        names |= {f"{key}.lora_down.weight", f"{key}.lora_up.weight", f"{key}.alpha"}
    assert names == weights.keys()
    assert names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": "all"}, "bias would train weights that"),
        ({"modules_to_save": ["proj_out"]}, "modules_to_save would train weights that"),
        ({"init_lora_weights": "pissa"}, "pissa changes the model's own weights"),
    ],
)
def test_lora_options_that_a_file_cannot_hold_are_refused(lab, options, message):
    with pytest.raises(UserError, match=message):
        lab.policy(lora={"rank": 2, "options": options})


def saved(policy, folder):
    weights = Checkpoint(tensors={"weights": trained_weights(policy)}, state={})
    return Checkpoints(folder).save(1, weights)


@pytest.mark.parametrize("settings", [{}, {"lora": {"rank": 2}}, {"architecture": "flux"}])
def test_a_checkpoint_restores_the_weights_exactly(lab, settings, tmp_path):
    policy, other = lab.policy(**settings), lab.policy(**settings)
    with torch.no_grad():
        for parameter in lab.trained(policy):
            parameter.add_(0.01 * torch.randn_like(parameter))
    saved(policy, tmp_path)
    read_weights(other, Checkpoints(tmp_path).load())
    for one, two in zip(lab.trained(policy), lab.trained(other), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(evaluated(lab, other), evaluated(lab, policy))


def test_a_checkpoint_holds_only_the_trained_weights(lab, tmp_path):
    for name, lora in [("full", None), ("lora", {"rank": 2})]:
        policy = lab.policy(lora=lora)
        size = (saved(policy, tmp_path / name) / "weights.safetensors").stat().st_size
        count = sum(p.numel() for p in lab.trained(policy))
        assert 4 * count < size < 4 * count + 20_000
    with pytest.raises(UserError, match="is of another model"):
        read_weights(lab.policy(lora={"rank": 2}), Checkpoints(tmp_path / "full").load())
