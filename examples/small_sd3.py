"""A Stable Diffusion 3 pipeline of toy size, for pictures of 32 pixels, and its training.

Every component has the real architecture (an SD3 transformer, an AutoencoderKL, two CLIP text
encoders with their tokenizers, no T5), so whatever trains this model trains the full-size ones.
`shapes/make_base.py` and `glyphs/make_base.py` train it.
"""

import json
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from diffusers.utils import logging
from flow_matching import clock, cool, match_flow
from PIL.Image import Image
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import BpeTrainer
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer

LATENT_CHANNELS = 8
FACTOR = 4
"""Pixels along a latent's side."""


def tokenizer(texts: Sequence[str], length: int) -> CLIPTokenizer:
    """A CLIP tokenizer with one token for every word of the texts; prompts have `length` tokens."""
    bpe = Tokenizer(BPE(end_of_word_suffix="</w>"))
    bpe.pre_tokenizer = Whitespace()
    trainer = BpeTrainer(
        vocab_size=4000, min_frequency=1, end_of_word_suffix="</w>", show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    model = json.loads(bpe.to_str())["model"]
    vocab = dict(model["vocab"])
    for name in ("<|startoftext|>", "<|endoftext|>"):
        vocab[name] = len(vocab)
    merges = [tuple(pair) for pair in model["merges"]]
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=length)


def pipeline(
    texts: Sequence[str], *, length: int, width: int = 96, layers: int = 4, side: int = 8
) -> StableDiffusion3Pipeline:
    """An untrained pipeline. length: tokens of a prompt; side: of the square latents."""
    words = tokenizer(texts, length)
    text_width = width // 2
    return StableDiffusion3Pipeline(
        transformer=SD3Transformer2DModel(
            sample_size=side,
            patch_size=2,
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            num_layers=layers,
            attention_head_dim=32,
            num_attention_heads=width // 32,
            joint_attention_dim=2 * text_width,
            caption_projection_dim=width,
            pooled_projection_dim=2 * text_width,
            pos_embed_max_size=2 * side,
        ),
        vae=AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3,
            block_out_channels=(8, 16, 32),
            layers_per_block=1,
            norm_num_groups=4,
            latent_channels=LATENT_CHANNELS,
            use_quant_conv=False,
            use_post_quant_conv=False,
            shift_factor=0.0,
            sample_size=side * FACTOR,
        ),
        text_encoder=_text_encoder(words, text_width),
        text_encoder_2=_text_encoder(words, text_width),
        text_encoder_3=None,
        tokenizer=words,
        tokenizer_2=words,
        tokenizer_3=None,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
    )


def _text_encoder(words: CLIPTokenizer, width: int) -> CLIPTextModelWithProjection:
    config = CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=words.model_max_length,
        projection_dim=width,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    return CLIPTextModelWithProjection(config)


def train_autoencoder(vae: AutoencoderKL, pictures: Tensor, *, minutes: float) -> float:
    """Train on pictures [n, 3, h, w] in [0, 1]; returns the root mean square error of pixels.

    Scale and shift are then set so that latents have mean 0 and std 1.
    """
    vae.train()
    optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3, weight_decay=0.0)
    mean_error = 1.0
    for share in clock(minutes):
        cool(optimizer, 2e-3, share)
        real = pictures[torch.randint(len(pictures), (64,))] * 2 - 1
        posterior = vae.encode(real).latent_dist
        error = (vae.decode(posterior.sample()).sample - real).square().mean()
        (error + 1e-4 * posterior.kl().mean() / posterior.mean[0].numel()).backward()
        nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean_error = 0.98 * mean_error + 0.02 * error.item()
    vae.eval()
    latents = encode(vae, pictures[:2048], scaled=False)
    vae.register_to_config(
        scaling_factor=1 / latents.std().item(), shift_factor=latents.mean().item()
    )
    return math.sqrt(mean_error) / 2


def to_tensor(picture: Image) -> Tensor:
    """A picture as [3, h, w] in [0, 1]."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


@torch.no_grad()
def encode(vae: AutoencoderKL, pictures: Tensor, *, scaled: bool = True) -> Tensor:
    """Latents of pictures [n, 3, h, w] in [0, 1], scaled as the transformer takes them."""
    parts = [vae.encode(some * 2 - 1).latent_dist.mean for some in pictures.split(256)]
    latents = torch.cat(parts)
    if not scaled:
        return latents
    return (latents - vae.config.shift_factor) * vae.config.scaling_factor


def train_flow(
    pipe: StableDiffusion3Pipeline,
    latents: Tensor,
    caption: Callable[[int], str],
    *,
    minutes: float,
    rate: float = 1e-3,
) -> int:
    """Flow matching of transformer and text encoders; returns the number of updates.

    caption: a prompt for the picture of this index; may differ at each call.
    """

    def velocity(mixed: Tensor, sigma: Tensor, rows: Sequence[int]) -> Tensor:
        embeds, pooled = _encode_prompts(pipe, [caption(row) for row in rows])
        found: Tensor = pipe.transformer(
            hidden_states=mixed,
            timestep=1000 * sigma,
            encoder_hidden_states=embeds,
            pooled_projections=pooled,
            return_dict=False,
        )[0]
        return found

    parts = nn.ModuleList([pipe.transformer, pipe.text_encoder, pipe.text_encoder_2])
    return match_flow(parts, velocity, latents, minutes=minutes, rate=rate)


def _encode_prompts(pipe: StableDiffusion3Pipeline, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Token and pooled embeddings by the pipeline's `encode_prompt`, with gradients."""
    embeds, _, pooled, _ = pipe.encode_prompt(
        list(texts), None, None, do_classifier_free_guidance=False, max_sequence_length=1
    )
    return embeds, pooled


def save(pipe: DiffusionPipeline, folder: Path) -> None:
    """Save a pipeline folder in half precision, which is enough for such a model."""
    logging.set_verbosity_error()  # no warning about the missing T5
    logging.disable_progress_bar()
    deepcopy(pipe).to(torch.float16).save_pretrained(folder)
    for path in folder.rglob("*config.json"):
        _forget_origin(path)
    _forget_origin(folder / "model_index.json")


def _forget_origin(path: Path) -> None:
    """Drop the path from which a component was loaded."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config.pop("_name_or_path", None)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load(folder: Path) -> StableDiffusion3Pipeline:
    return StableDiffusion3Pipeline.from_pretrained(
        folder, text_encoder_3=None, tokenizer_3=None, torch_dtype=torch.float32
    )
