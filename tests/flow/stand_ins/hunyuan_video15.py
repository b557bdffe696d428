"""A tiny random HunyuanVideo 1.5."""

from diffusers import (
    AutoencoderKLHunyuanVideo15,
    ClassifierFreeGuidance,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideo15Pipeline,
    HunyuanVideo15Transformer3DModel,
)
from tests.flow.stand_ins.text import qwen2_5_vl, qwen_tokenizer, t5
from tests.flow.stand_ins.weights import awake
from transformers import ByT5Tokenizer

SYSTEM = (
    "You are a helpful assistant. Describe the video by detailing the following aspects: "
    "        1. The main content and theme of the video. "
    "        2. The color, shape, size, texture, quantity, text, and spatial relationships of the "
    "objects.         3. Actions, events, behaviors temporal relationships, physical movement "
    "changes of the objects.         4. background environment, light, style and atmosphere. "
    "        5. camera angles, movements, and transitions used in the video."
)
"""The pipeline leaves out the first 108 tokens, which is about what it has with this tokenizer."""

FEWER_TOKENS = {
    "vision_num_semantic_tokens": 4,
    "tokenizer_max_length": 120,
    "tokenizer_2_max_length": 24,
}
"""Attributes of a pipeline that is loaded, whose own make two thousand tokens of zeros and padding
for every pass."""


def hunyuan_video15() -> HunyuanVideo15Pipeline:
    tokenizer, bytes_ = qwen_tokenizer([SYSTEM], size=460), ByT5Tokenizer()
    transformer = HunyuanVideo15Transformer3DModel(
        in_channels=9,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        text_embed_dim=16,
        text_embed_2_dim=16,
        image_embed_dim=8,
        rope_axes_dim=(4, 6, 6),
        target_size=32,
        task_type="t2v",
    )
    vae = AutoencoderKLHunyuanVideo15(
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        spatial_compression_ratio=8,
        temporal_compression_ratio=2,
        scaling_factor=1.5,
    )
    return HunyuanVideo15Pipeline(
        transformer=awake(transformer),
        vae=vae,
        text_encoder=qwen2_5_vl(tokenizer, layers=4).model.language_model,
        tokenizer=tokenizer,
        text_encoder_2=t5(bytes_),
        tokenizer_2=bytes_,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0),
        guider=ClassifierFreeGuidance(guidance_scale=6.0),
    )
