"""A tiny random LTX-Video, and one whose autoencoder takes a time."""

import torch
from diffusers import (
    AutoencoderKLLTXVideo,
    FlowMatchEulerDiscreteScheduler,
    LTXPipeline,
    LTXVideoTransformer3DModel,
)
from tests.flow.stand_ins.text import t5, t5_tokenizer
from tests.flow.stand_ins.weights import awake


def ltx(*, timed: bool = False) -> LTXPipeline:
    tokenizer = t5_tokenizer()
    transformer = LTXVideoTransformer3DModel(
        in_channels=6,
        out_channels=6,
        num_attention_heads=2,
        attention_head_dim=12,
        cross_attention_dim=24,
        num_layers=2,
        caption_channels=16,
    )
    return LTXPipeline(
        transformer=awake(transformer),
        vae=autoencoder(timed=timed),
        text_encoder=t5(tokenizer),
        tokenizer=tokenizer,
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True,
            base_shift=0.95,
            max_shift=2.05,
            base_image_seq_len=8,
            max_image_seq_len=64,
            shift_terminal=0.1,
        ),
    )


def autoencoder(*, timed: bool) -> AutoencoderKLLTXVideo:
    """Of 8 pixels and 2 frames a latent, with statistics that are not those of a fresh model."""
    vae = AutoencoderKLLTXVideo(
        latent_channels=6,
        block_out_channels=(4, 4),
        down_block_types=("LTXVideoDownBlock3D",) * 2,
        decoder_block_out_channels=(4, 4),
        layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        spatio_temporal_scaling=(True, False),
        decoder_spatio_temporal_scaling=(True, False),
        decoder_inject_noise=(False, False, False),
        downsample_type=("conv", "conv"),
        upsample_residual=(False, False),
        upsample_factor=(1, 1),
        timestep_conditioning=timed,
        decoder_causal=False,
    )
    with torch.no_grad():
        vae.latents_mean.normal_()
        vae.latents_std.uniform_(0.5, 2.0)
    return vae
