"""A FLUX.1 Kontext pipeline of toy size, for pictures of 32 pixels, and its training.

Every component has the real architecture (a FLUX transformer, an AutoencoderKL, a CLIP text encoder
and a T5 with their tokenizers), so whatever trains this model trains the full-size ones.
`recolor/make_base.py` trains it.
"""

from collections.abc import Callable, Sequence

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxKontextPipeline,
    FluxTransformer2DModel,
)
from flow_matching import match_flow
from small_sd3 import encode, tokenizer
from small_wan import tokenizer as unigram_tokenizer
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel

TEXT_WIDTH = 48
HEAD = (8, 12, 12)
"""Dimensions of a head that turn with a token's picture, its row and its column."""


def pipeline(
    texts: Sequence[str],
    vae: AutoencoderKL,
    *,
    length: int,
    heads: int = 3,
    joint: int = 2,
    single: int = 3,
) -> FluxKontextPipeline:
    """A pipeline that is untrained but for its autoencoder, for the words of these texts.

    length: tokens of a prompt for CLIP; joint, single: layers in which texts and pictures have
    weights of their own, and layers in which they share them.
    """
    words, pieces = tokenizer(texts, length), unigram_tokenizer(texts)
    return FluxKontextPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
        vae=vae,
        text_encoder=_clip(words),
        tokenizer=words,
        text_encoder_2=T5EncoderModel(
            T5Config(
                vocab_size=len(pieces),
                d_model=TEXT_WIDTH,
                d_kv=TEXT_WIDTH // 2,
                d_ff=2 * TEXT_WIDTH,
                num_layers=1,
                num_heads=2,
            )
        ),
        tokenizer_2=pieces,
        transformer=FluxTransformer2DModel(
            patch_size=1,
            in_channels=4 * vae.config.latent_channels,
            num_layers=joint,
            num_single_layers=single,
            attention_head_dim=sum(HEAD),
            num_attention_heads=heads,
            joint_attention_dim=TEXT_WIDTH,
            pooled_projection_dim=TEXT_WIDTH,
            guidance_embeds=False,
            axes_dims_rope=HEAD,
        ),
    )


def _clip(words: CLIPTokenizer) -> CLIPTextModel:
    config = CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=TEXT_WIDTH,
        intermediate_size=2 * TEXT_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=words.model_max_length,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    return CLIPTextModel(config)


def packed(vae: AutoencoderKL, pictures: Tensor) -> Tensor:
    """Latents [n, tokens, channels] of pictures [n, 3, h, w] in [0, 1]; a token has 2 x 2."""
    latents = encode(vae, pictures)
    return FluxKontextPipeline._pack_latents(latents, *latents.shape)


def places(tokens: int) -> Tensor:
    """[2 tokens, 3]: 0, row and column of each token of a square result, then 1, row and column of
    each of its source."""
    side = torch.arange(round(tokens**0.5))
    return torch.cartesian_prod(torch.arange(2), side, side).float()


def train_flow(
    pipe: FluxKontextPipeline,
    sources: Tensor,
    results: Tensor,
    instruction: Callable[[int], str],
    *,
    length: int,
    minutes: float,
    rate: float = 1e-3,
) -> int:
    """Flow matching of transformer and text encoders; returns the number of updates.

    sources, results: latents [n, tokens, channels]; instruction: a prompt for the edit of this
    index, which may differ at each call; length: tokens of it for T5.
    """
    both = places(sources.shape[1])

    def velocity(mixed: Tensor, sigma: Tensor, rows: Sequence[int]) -> Tensor:
        texts = [instruction(row) for row in rows]
        embeds, pooled, text_places = pipe.encode_prompt(texts, max_sequence_length=length)
        found: Tensor = pipe.transformer(
            hidden_states=torch.cat([mixed, sources[rows]], dim=1),
            timestep=sigma,
            encoder_hidden_states=embeds,
            pooled_projections=pooled,
            txt_ids=text_places,
            img_ids=both,
            return_dict=False,
        )[0]
        return found[:, : mixed.shape[1]]

    parts = nn.ModuleList([pipe.transformer, pipe.text_encoder, pipe.text_encoder_2])
    return match_flow(parts, velocity, results, minutes=minutes, batch=64, rate=rate)
