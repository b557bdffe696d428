"""First configurations: precision and guidance that fit the model, by its name or its folder."""

import json

import pytest

from groupwise_flow.draft import FlowDraft

NAMED = [
    ("stabilityai/stable-diffusion-3.5-medium", "fp16", 4.5),
    ("black-forest-labs/FLUX.1-dev", "bf16", 3.5),
    ("black-forest-labs/FLUX.1-schnell", "bf16", 1.0),
    ("black-forest-labs/FLUX.2-klein-4B", "bf16", 1.0),
    ("black-forest-labs/FLUX.2-klein-base-4B", "bf16", 4.0),
    ("Qwen/Qwen-Image", "bf16", 4.0),
    ("Tongyi-MAI/Z-Image-Turbo", "bf16", 1.0),
]


@pytest.mark.parametrize(("model", "precision", "guidance"), NAMED)
def test_a_model_of_a_hub(model, precision, guidance):
    assert FlowDraft().settings(model) == {"precision": precision, "guidance": guidance}


@pytest.mark.parametrize(
    ("index", "guidance"),
    [
        ({"_class_name": "FluxPipeline"}, 3.5),
        ({"_class_name": "Flux2KleinPipeline", "is_distilled": True}, 1.0),
        ({"_class_name": "Flux2KleinPipeline", "is_distilled": False}, 4.0),
        ({"_class_name": "StableDiffusion3Pipeline"}, 4.5),
    ],
)
def test_a_folder(index, guidance, tmp_path):
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    assert FlowDraft().settings(str(tmp_path))["guidance"] == guidance
