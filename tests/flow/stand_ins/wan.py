"""Tiny random Wan 2.1, and Wan 2.2 5B and A14B, with the scheduler of their folders: UniPC."""

from typing import Any

from diffusers import (
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from tests.flow.stand_ins.text import t5_tokenizer, umt5
from tests.flow.stand_ins.weights import awake

BOUNDARY = 0.875


def wan(*, second: bool = False) -> WanPipeline:
    """second: with a second transformer, as of Wan 2.2 A14B."""
    vae = autoencoder(z_dim=4, dim_mult=[1, 2, 2])
    return pipeline(
        vae,
        transformer=transformer(4),
        transformer_2=transformer(4) if second else None,
        boundary_ratio=BOUNDARY if second else None,
    )


def wan_5b() -> WanPipeline:
    """A time for each token, and an autoencoder that joins pixels before it convolves."""
    vae = autoencoder(
        z_dim=6,
        dim_mult=[1, 1, 1],
        decoder_base_dim=4,
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_spatial=8,
    )
    return pipeline(vae, transformer=transformer(6), expand_timesteps=True)


def pipeline(vae: Any, **parts: Any) -> WanPipeline:
    tokenizer = t5_tokenizer()
    return WanPipeline(
        vae=vae,
        text_encoder=umt5(tokenizer),
        tokenizer=tokenizer,
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        **parts,
    )


def transformer(channels: int) -> Any:
    model = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=channels,
        out_channels=channels,
        text_dim=16,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
    )
    return awake(model)


def autoencoder(*, z_dim: int, **parts: Any) -> AutoencoderKLWan:
    usual = {"scale_factor_temporal": 2, "scale_factor_spatial": 4}
    return AutoencoderKLWan(
        base_dim=4,
        z_dim=z_dim,
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.1 * number for number in range(z_dim)],
        latents_std=[1.0 + 0.2 * number for number in range(z_dim)],
        **{**usual, **parts},
    )
