"""Tiny random Stable Diffusion 1.5 and XL, with the schedulers that their folders have."""

from typing import Any

from diffusers import (
    DDIMScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)

SCHEDULE = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "steps_offset": 1,
}
"""Of the published models; the DDIM among their settings ends at alphas_cumprod[0]."""
SCHEDULERS: dict[str, Any] = {
    "pndm": lambda **more: PNDMScheduler(
        **SCHEDULE, skip_prk_steps=True, set_alpha_to_one=False, **more
    ),
    "euler": lambda **more: EulerDiscreteScheduler(**SCHEDULE, timestep_spacing="leading", **more),
    "ddim": lambda **more: DDIMScheduler(
        **SCHEDULE, clip_sample=False, set_alpha_to_one=False, **more
    ),
}


def sd15(tokenizer: Any, encoder: Any, vae: Any, scheduler: Any) -> StableDiffusionPipeline:
    return StableDiffusionPipeline(
        unet=unet(cross_attention_dim=8),
        vae=vae,
        text_encoder=encoder,
        tokenizer=tokenizer,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def sdxl(
    tokenizer: Any, encoders: tuple[Any, Any], vae: Any, scheduler: Any
) -> StableDiffusionXLPipeline:
    """encoders: CLIP without and with a projection, each of width 8."""
    return StableDiffusionXLPipeline(
        unet=unet(
            cross_attention_dim=16,
            addition_embed_type="text_time",
            addition_time_embed_dim=4,
            projection_class_embeddings_input_dim=8 + 6 * 4,
        ),
        vae=vae,
        text_encoder=encoders[0],
        text_encoder_2=encoders[1],
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        scheduler=scheduler,
        add_watermarker=False,
    )


def unet(**more: Any) -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        **more,
    )
