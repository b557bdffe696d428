"""A tiny random FLUX.1 Kontext."""

from diffusers import FlowMatchEulerDiscreteScheduler, FluxKontextPipeline, FluxTransformer2DModel
from tests.flow.stand_ins.text import clip_tokenizer, t5, t5_tokenizer, text_encoder
from tests.flow.stand_ins.weights import autoencoder, awake


def flux_kontext() -> FluxKontextPipeline:
    tokenizer, long_tokenizer = clip_tokenizer(), t5_tokenizer()
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=8,
        guidance_embeds=True,
        axes_dims_rope=(2, 2, 4),
    )
    return FluxKontextPipeline(
        transformer=awake(transformer),
        vae=autoencoder(),
        text_encoder=text_encoder(tokenizer, projection=False),
        text_encoder_2=t5(long_tokenizer),
        tokenizer=tokenizer,
        tokenizer_2=long_tokenizer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
    )
