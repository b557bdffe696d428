"""First configurations: precision and guidance that fit the model, by its name or its folder."""

import json

import pytest

from groupwise_flow.draft import FlowDraft

NAMED = [
    ("stabilityai/stable-diffusion-3.5-medium", "fp16", 4.5, 512),
    ("stabilityai/stable-diffusion-3.5-large-turbo", "fp16", 1.0, 512),
    ("stabilityai/stable-diffusion-xl-base-1.0", "bf16", 5.0, 1024),
    ("stable-diffusion-v1-5/stable-diffusion-v1-5", "bf16", 5.0, 512),
    ("black-forest-labs/FLUX.1-dev", "bf16", 3.5, 512),
    ("black-forest-labs/FLUX.1-schnell", "bf16", 1.0, 512),
    ("black-forest-labs/FLUX.2-klein-4B", "bf16", 1.0, 512),
    ("black-forest-labs/FLUX.2-klein-base-4B", "bf16", 4.0, 512),
    ("Qwen/Qwen-Image", "bf16", 4.0, 512),
    ("Tongyi-MAI/Z-Image-Turbo", "bf16", 1.0, 512),
]


@pytest.mark.parametrize(("model", "precision", "guidance", "side"), NAMED)
def test_a_model_of_a_hub(model, precision, guidance, side):
    settings = FlowDraft().settings(model)
    assert (settings["precision"], settings["guidance"]) == (precision, guidance)
    assert f"height: {side}" in settings["size"]
    assert settings["evaluation_steps"] == (8 if guidance == 1.0 else 40)
    predicts_noise = guidance == 5.0
    assert ("sde: ddim" in settings["process"]) == predicts_noise
    assert ("published" in settings["kl"]) != predicts_noise


@pytest.mark.parametrize(
    ("index", "guidance"),
    [
        ({"_class_name": "FluxPipeline"}, 3.5),
        ({"_class_name": "Flux2KleinPipeline", "is_distilled": True}, 1.0),
        ({"_class_name": "Flux2KleinPipeline", "is_distilled": False}, 4.0),
        ({"_class_name": "StableDiffusion3Pipeline"}, 4.5),
        ({"_class_name": "StableDiffusionXLPipeline"}, 5.0),
        ({"_class_name": "StableDiffusionPipeline"}, 5.0),
    ],
)
def test_a_folder(index, guidance, tmp_path):
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    assert FlowDraft().settings(str(tmp_path))["guidance"] == guidance
