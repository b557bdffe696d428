"""A tiny random Qwen-Image, with a tokenizer trained on its prompt template."""

from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from tests.flow.stand_ins.text import qwen2_5_vl, qwen_tokenizer
from tests.flow.stand_ins.weights import awake

TEMPLATE = (
    "system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:\nuser\nassistant\n"
)
"""The pipeline drops its first 34 tokens, which is about what it has with this tokenizer."""


def qwen_image() -> QwenImagePipeline:
    tokenizer = qwen_tokenizer([TEMPLATE])
    transformer = QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    vae = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.5, 0.8, 1.0, 2.0],
    )
    return QwenImagePipeline(
        transformer=awake(transformer),
        vae=vae,
        text_encoder=qwen2_5_vl(tokenizer),
        tokenizer=tokenizer,
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, shift_terminal=0.02
        ),
    )
