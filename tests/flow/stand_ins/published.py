"""Folders with the published configurations of models, as far as they say how large these are."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CLIP_L = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
    "vocab_size": 49408,
}
CLIP_G = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
    "vocab_size": 49408,
}
AUTOENCODER = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
    "latent_channels": 4,
    "scaling_factor": 0.18215,
}
SD15_UNET = {"sample_size": 64, "cross_attention_dim": 768}
SDXL_UNET = {
    "sample_size": 128,
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
MODELS: dict[str, Mapping[str, Any]] = {
    "sd15": {
        "unet": ("diffusers", "UNet2DConditionModel", SD15_UNET),
        "vae": ("diffusers", "AutoencoderKL", AUTOENCODER),
        "text_encoder": ("transformers", "CLIPTextModel", CLIP_L),
    },
    "sdxl": {
        "unet": ("diffusers", "UNet2DConditionModel", SDXL_UNET),
        "vae": ("diffusers", "AutoencoderKL", AUTOENCODER),
        "text_encoder": ("transformers", "CLIPTextModel", CLIP_L),
        "text_encoder_2": ("transformers", "CLIPTextModelWithProjection", CLIP_G),
    },
}
"""Library, class and configuration of each part, by the name of its stand-in."""
PARAMETERS = {"sd15": 0.860e9, "sdxl": 2.567e9}
"""Of the U-Nets, as published."""


def write(parts: Mapping[str, Any], stand_in: Path, folder: Path) -> Path:
    """Write a folder without weights: the configurations of `parts`, the stand-in's of the rest.

    parts: of `MODELS`, or of the same form.
    """
    shutil.copytree(stand_in, folder, dirs_exist_ok=True)  # for its scheduler and tokenizers
    index = json.loads((stand_in / "model_index.json").read_text())
    for part, (library, kind, config) in parts.items():
        index[part] = [library, kind]
        (folder / part / "config.json").write_text(json.dumps({"_class_name": kind, **config}))
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder
