"""A tiny random Lumina-Image 2.0; its pipeline takes autoencoders of 8 pixels a latent."""

from diffusers import FlowMatchEulerDiscreteScheduler, Lumina2Pipeline, Lumina2Transformer2DModel
from tests.flow.stand_ins.text import gemma2, gemma_tokenizer
from tests.flow.stand_ins.weights import autoencoder, awake

SYSTEM = (
    "You are an assistant designed to generate superior images with the superior degree of "
    "image-text alignment based on textual prompts or user prompts. <Prompt Start> "
)


def lumina2() -> Lumina2Pipeline:
    tokenizer = gemma_tokenizer([SYSTEM])
    transformer = Lumina2Transformer2DModel(
        sample_size=4,
        in_channels=4,
        hidden_size=32,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(8, 4, 4),
        axes_lens=(128, 16, 16),
        cap_feat_dim=16,
    )
    return Lumina2Pipeline(
        transformer=awake(transformer),
        vae=autoencoder(levels=4),
        text_encoder=gemma2(tokenizer),
        tokenizer=tokenizer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0),
    )
