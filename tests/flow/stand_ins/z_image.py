"""A tiny random Z-Image."""

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from tests.flow.stand_ins.text import qwen3, qwen_tokenizer
from tests.flow.stand_ins.weights import autoencoder, awake
from transformers import Qwen3Model


def z_image() -> ZImagePipeline:
    tokenizer = qwen_tokenizer()
    transformer = ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=16,
        axes_dims=[8, 4, 4],
        axes_lens=[256, 32, 32],
    )
    awake(transformer)
    with torch.no_grad():  # else velocities are near 16, and rounding at one step grows at the next
        for layer in transformer.all_final_layer.values():
            for parameter in layer.linear.parameters():
                parameter.mul_(0.05)
    return ZImagePipeline(
        transformer=transformer,
        vae=autoencoder(),
        text_encoder=qwen3(Qwen3Model, tokenizer),
        tokenizer=tokenizer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
