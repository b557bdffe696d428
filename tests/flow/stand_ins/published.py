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
WIDE_AUTOENCODER = {**AUTOENCODER, "latent_channels": 16, "scaling_factor": 0.3611}
"""FLUX.1's, which Z-Image and Lumina-Image 2.0 have, too."""
QWEN3_4B = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
QWEN3_8B = {
    **QWEN3_4B,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "tie_word_embeddings": False,
}
QWEN2_5_VL_7B = {
    "text_config": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    },
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
    },
}
GEMMA2_2B = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 256000,
}
MISTRAL_SMALL = {
    "text_config": {
        "model_type": "mistral",
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131072,
    },
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 1540,
        "patch_size": 14,
    },
}
Z_IMAGE = {
    "dim": 3840,
    "n_layers": 30,
    "n_refiner_layers": 2,
    "n_heads": 30,
    "n_kv_heads": 30,
    "cap_feat_dim": 2560,
    "axes_dims": [32, 48, 48],
    "axes_lens": [1536, 512, 512],
}
KLEIN_9B = {
    "num_layers": 8,
    "num_single_layers": 24,
    "num_attention_heads": 32,
    "joint_attention_dim": 12288,
    "guidance_embeds": False,
}
KLEIN_4B = {
    "num_layers": 5,
    "num_single_layers": 20,
    "num_attention_heads": 24,
    "joint_attention_dim": 7680,
    "guidance_embeds": False,
}
SANA = {"qk_norm": "rms_norm_across_heads"}
SANA_AUTOENCODER = {
    "encoder_block_types": ["ResBlock"] * 3 + ["EfficientViTBlock"] * 3,
    "decoder_block_types": ["ResBlock"] * 3 + ["EfficientViTBlock"] * 3,
    "downsample_block_type": "Conv",
    "upsample_block_type": "interpolate",
    "scaling_factor": 0.41407,
}
LUMINA2 = {"cap_feat_dim": 2304}
WAN_1B = {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}
WAN_5B = {
    "num_attention_heads": 24,
    "ffn_dim": 14336,
    "num_layers": 30,
    "in_channels": 48,
    "out_channels": 48,
}
WAN_5B_AUTOENCODER = {
    "base_dim": 160,
    "decoder_base_dim": 256,
    "z_dim": 48,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "latents_mean": [0.0] * 48,
    "latents_std": [1.0] * 48,
}
UMT5_XXL = {
    "d_model": 4096,
    "d_ff": 10240,
    "d_kv": 64,
    "num_heads": 64,
    "num_layers": 24,
    "vocab_size": 256384,
    "feed_forward_proj": "gated-gelu",
}
T5_XXL = {**UMT5_XXL, "vocab_size": 32128}
BYT5_SMALL = {
    "d_model": 1472,
    "d_ff": 3584,
    "d_kv": 64,
    "num_heads": 6,
    "num_layers": 12,
    "vocab_size": 1510,
    "feed_forward_proj": "gated-gelu",
}
HUNYUAN15 = {"target_size": 480, "task_type": "t2v"}
WAN = {
    "transformer": ("diffusers", "WanTransformer3DModel", {}),
    "vae": ("diffusers", "AutoencoderKLWan", {}),
    "text_encoder": ("transformers", "UMT5EncoderModel", UMT5_XXL),
}
"""Wan 2.1 14B."""
MODELS: dict[str, Mapping[str, Any]] = {
    "wan21": WAN,
    "wan21 1.3B": {**WAN, "transformer": ("diffusers", "WanTransformer3DModel", WAN_1B)},
    "wan22": {**WAN, "transformer_2": ("diffusers", "WanTransformer3DModel", {})},
    "wan22_5b": {
        **WAN,
        "transformer": ("diffusers", "WanTransformer3DModel", WAN_5B),
        "vae": ("diffusers", "AutoencoderKLWan", WAN_5B_AUTOENCODER),
    },
    "ltx": {
        "transformer": ("diffusers", "LTXVideoTransformer3DModel", {}),
        "vae": ("diffusers", "AutoencoderKLLTXVideo", {}),
        "text_encoder": ("transformers", "T5EncoderModel", T5_XXL),
    },
    "hunyuan15": {
        "transformer": ("diffusers", "HunyuanVideo15Transformer3DModel", HUNYUAN15),
        "vae": ("diffusers", "AutoencoderKLHunyuanVideo15", {}),
        "text_encoder": ("transformers", "Qwen2_5_VLTextModel", QWEN2_5_VL_7B["text_config"]),
        "text_encoder_2": ("transformers", "T5EncoderModel", BYT5_SMALL),
    },
    "z_image": {
        "transformer": ("diffusers", "ZImageTransformer2DModel", Z_IMAGE),
        "vae": ("diffusers", "AutoencoderKL", WIDE_AUTOENCODER),
        "text_encoder": ("transformers", "Qwen3Model", QWEN3_4B),
    },
    "qwen_image": {
        "transformer": ("diffusers", "QwenImageTransformer2DModel", {}),
        "vae": ("diffusers", "AutoencoderKLQwenImage", {}),
        "text_encoder": ("transformers", "Qwen2_5_VLForConditionalGeneration", QWEN2_5_VL_7B),
    },
    "flux_kontext": {
        "transformer": ("diffusers", "FluxTransformer2DModel", {"guidance_embeds": True}),
        "vae": ("diffusers", "AutoencoderKL", {**WIDE_AUTOENCODER, "shift_factor": 0.1159}),
        "text_encoder": ("transformers", "CLIPTextModel", CLIP_L),
        "text_encoder_2": ("transformers", "T5EncoderModel", T5_XXL),
    },
    "qwen_image_edit": {
        "transformer": ("diffusers", "QwenImageTransformer2DModel", {}),
        "vae": ("diffusers", "AutoencoderKLQwenImage", {}),
        "text_encoder": ("transformers", "Qwen2_5_VLForConditionalGeneration", QWEN2_5_VL_7B),
    },
    "flux2_klein": {
        "transformer": ("diffusers", "Flux2Transformer2DModel", KLEIN_9B),
        "vae": ("diffusers", "AutoencoderKLFlux2", {}),
        "text_encoder": ("transformers", "Qwen3ForCausalLM", QWEN3_8B),
    },
    "flux2_klein distilled": {
        "transformer": ("diffusers", "Flux2Transformer2DModel", KLEIN_4B),
        "vae": ("diffusers", "AutoencoderKLFlux2", {}),
        "text_encoder": ("transformers", "Qwen3ForCausalLM", QWEN3_4B),
    },
    "flux2": {
        "transformer": ("diffusers", "Flux2Transformer2DModel", {}),
        "vae": ("diffusers", "AutoencoderKLFlux2", {}),
        "text_encoder": ("transformers", "Mistral3ForConditionalGeneration", MISTRAL_SMALL),
    },
    "sana": {
        "transformer": ("diffusers", "SanaTransformer2DModel", SANA),
        "vae": ("diffusers", "AutoencoderDC", SANA_AUTOENCODER),
        "text_encoder": ("transformers", "Gemma2Model", GEMMA2_2B),
    },
    "lumina2": {
        "transformer": ("diffusers", "Lumina2Transformer2DModel", LUMINA2),
        "vae": ("diffusers", "AutoencoderKL", WIDE_AUTOENCODER),
        "text_encoder": ("transformers", "Gemma2Model", GEMMA2_2B),
    },
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
PARAMETERS = {
    "sd15": 0.860e9,
    "sdxl": 2.567e9,
    "z_image": 6.15e9,
    "qwen_image": 20.4e9,
    "flux_kontext": 11.9e9,
    "qwen_image_edit": 20.4e9,
    "flux2_klein": 9.08e9,
    "flux2_klein distilled": 3.88e9,
    "flux2": 32.2e9,
    "sana": 1.60e9,
    "lumina2": 2.61e9,
    "wan21": 14.3e9,
    "wan21 1.3B": 1.42e9,
    "wan22": 14.3e9,
    "wan22_5b": 5.0e9,
    "ltx": 1.92e9,
    "hunyuan15": 8.33e9,
}
"""Of the U-Nets and transformers, as published."""


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
