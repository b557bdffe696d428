"""First configurations: precision and guidance that fit the model, by its name or its folder."""

import json

import pytest

from groupwise.kit.errors import UserError
from groupwise_flow.draft import FlowDraft
from groupwise_flow.video_draft import VideoDraft

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


@pytest.mark.parametrize(
    ("model", "guidance", "tokens"),
    [
        ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", 5.0, 512),
        ("Lightricks/LTX-Video", 3.0, 128),
        ("HunyuanVideo15Pipeline", 6.0, 512),
    ],
)
def test_a_model_of_videos(model, guidance, tokens, tmp_path):
    """By the name of a hub, or by the class in a folder, which `--image` refuses."""
    if "/" not in model:
        (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": model}))
        model = str(tmp_path)
        with pytest.raises(UserError, match="set --video in place of --image"):
            FlowDraft().settings(model)
    assert VideoDraft().settings(model) == {"guidance": guidance, "prompt_tokens": tokens}


CLASSES = {
    "black-forest-labs/FLUX.1": "FluxPipeline",
    "Tongyi-MAI/Z-Image": "ZImagePipeline",
    "stabilityai/stable-diffusion-3": "StableDiffusion3Pipeline",
    "stabilityai/sdxl": "StableDiffusionXLPipeline",
    "stabilityai/stable-diffusion-2": "StableDiffusionPipeline",
    "stable-diffusion-v1-5/stable-diffusion-v1-5": "StableDiffusionPipeline",
}
COPIED = (
    *(f"{model}{end}" for model in CLASSES for end in ("", "-turbo", "-Lightning")),
    *("black-forest-labs/FLUX.1-schnell", "black-forest-labs/FLUX.1-dev"),
)


@pytest.mark.parametrize("model", COPIED)
def test_a_copy_in_a_folder_is_drafted_as_the_model_of_the_hub(model, tmp_path):
    """By the folder's name, or by the name that the files have for where they came from."""
    kind = next(each for name, each in CLASSES.items() if model.startswith(name))
    by_name, renamed = tmp_path / model.rpartition("/")[2], tmp_path / "mine"
    for folder, index in (by_name, {}), (renamed, {"_name_or_path": model}):
        folder.mkdir()
        content = json.dumps({"_class_name": kind, **index})
        (folder / "model_index.json").write_text(content)
    theirs = dict(FlowDraft().settings(model))
    del theirs["size"]  # a folder's model states it
    for folder in (by_name, renamed):
        settings = FlowDraft().settings(str(folder))
        assert {key: settings[key] for key in theirs} == theirs


def test_a_transformer_that_takes_no_guidance_is_distilled(tmp_path):
    (tmp_path / "transformer").mkdir()
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    for embeds, guidance in (True, 3.5), (False, 1.0):
        config = json.dumps({"guidance_embeds": embeds})
        (tmp_path / "transformer" / "config.json").write_text(config)
        assert FlowDraft().settings(str(tmp_path))["guidance"] == guidance
