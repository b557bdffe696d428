"""A tiny random Sana, with the scheduler that its folder holds: a second-order solver."""

import inspect

from diffusers import (
    AutoencoderDC,
    DPMSolverMultistepScheduler,
    SanaPipeline,
    SanaTransformer2DModel,
)
from tests.flow.stand_ins.text import gemma2, gemma_tokenizer
from tests.flow.stand_ins.weights import awake


def sana() -> SanaPipeline:
    instruction = inspect.signature(SanaPipeline.__call__).parameters["complex_human_instruction"]
    tokenizer = gemma_tokenizer(instruction.default)
    transformer = SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=16,
        sample_size=32,
        qk_norm="rms_norm_across_heads",
        timestep_scale=0.5,
    )
    vae = AutoencoderDC(
        latent_channels=4,
        attention_head_dim=4,
        encoder_block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        encoder_layers_per_block=(1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        encoder_qkv_multiscales=((), (), (), ()),
        decoder_qkv_multiscales=((), (), (), ()),
        scaling_factor=0.41407,
    )
    return SanaPipeline(
        transformer=awake(transformer),
        vae=vae,
        text_encoder=gemma2(tokenizer),
        tokenizer=tokenizer,
        scheduler=DPMSolverMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    )
