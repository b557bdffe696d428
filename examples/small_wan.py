"""A Wan 2.1 pipeline of toy size, for videos of 5 frames of 32 pixels, and its training.

Every component has the real architecture (a Wan transformer, an AutoencoderKLWan that joins four
frames after the first into one of latents, a UMT5), so whatever trains this model trains the
full-size ones. `moving/make_base.py` trains it.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from flow_matching import clock, cool, match_flow
from torch import Tensor, nn
from transformers import T5Tokenizer, UMT5Config, UMT5EncoderModel

LATENT_CHANNELS = 8
TEXT_WIDTH = 64
SHARP = 0.02
"""The root mean square error of pixels at which single frames are decoded well."""


def tokenizer(texts: Sequence[str]) -> T5Tokenizer:
    """A unigram tokenizer with a token for each word of the texts."""
    words = sorted({word for text in texts for word in text.split()})
    pieces = ["<pad>", "</s>", "<unk>", "\u2581", *(f"\u2581{word}" for word in words)]
    return T5Tokenizer(vocab=[(piece, -float(n)) for n, piece in enumerate(pieces)], extra_ids=0)


def pipeline(texts: Sequence[str], *, heads: int = 3, layers: int = 4) -> WanPipeline:
    """An untrained pipeline for the words of these texts; a head is 32 wide."""
    words = tokenizer(texts)
    return WanPipeline(
        tokenizer=words,
        text_encoder=UMT5EncoderModel(
            UMT5Config(
                vocab_size=len(words),
                d_model=TEXT_WIDTH,
                d_kv=TEXT_WIDTH // 2,
                d_ff=2 * TEXT_WIDTH,
                num_layers=1,
                num_heads=2,
            )
        ),
        transformer=WanTransformer3DModel(
            num_attention_heads=heads,
            attention_head_dim=32,
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            text_dim=TEXT_WIDTH,
            freq_dim=64,
            ffn_dim=4 * 32 * heads,
            num_layers=layers,
            rope_max_seq_len=32,
        ),
        vae=autoencoder(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
    )


def autoencoder() -> AutoencoderKLWan:
    """An autoencoder that begins as one of single frames, each of which is read by itself.

    With weights as they are drawn, it would learn to decode everything as gray.
    """
    vae = AutoencoderKLWan(
        base_dim=8,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 4],
        num_res_blocks=1,
        temperal_downsample=[True, True],
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
        scale_factor_temporal=4,
        scale_factor_spatial=4,
    )
    with torch.no_grad():
        for name, layer in vae.named_modules():
            if isinstance(layer, nn.Conv3d) and layer.kernel_size[0] == 3:
                layer.weight[:, :, :-1] = 0  # the frames before
                if name.endswith("time_conv"):  # copies the last frame, once or twice
                    copies = layer.out_channels // layer.in_channels
                    one = torch.eye(layer.in_channels)[:, :, None, None]
                    layer.weight[:, :, -1] = one.repeat(copies, 1, 1, 1)
                    layer.bias.zero_()
        vae.quant_conv.bias[LATENT_CHANNELS:] = -6.0  # log of the latents' variance
    return vae


def train_autoencoder(vae: AutoencoderKLWan, films: Tensor, *, minutes: float) -> float:
    """Train on films [n, frames, 3, h, w] of uint8; returns the root mean square error of pixels
    in [0, 1].

    Single frames come first, until these are decoded well, and many small steps are better than few
    large ones. Latents then get mean 0 and std 1 per channel by the configuration.
    """
    vae.train()
    layers = _by_frames(vae)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3, weight_decay=0.0)
    mean_error, alone = 1.0, True
    for updates, share in enumerate(clock(minutes)):
        cool(optimizer, 2e-3, share)
        alone = alone and share < 0.5 and _rms(mean_error) > SHARP
        real = _pixels(films[torch.randint(len(films), (8 if alone else 4,))])
        if alone:
            frame = int(torch.randint(real.shape[2], ()))
            real = real[:, :, frame : frame + 1]
        posterior = vae.encode(real).latent_dist
        error = (_decode(vae, posterior.sample()) - real).square().mean()
        (error + 1e-4 * posterior.kl().mean() / posterior.mean[0].numel()).backward()
        nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean_error = 0.98 * mean_error + 0.02 * error.item()
        if updates % 500 == 0:
            print(
                f"  {share:.2f}: {updates} updates, pixel error {_rms(mean_error):.4f}", flush=True
            )
    for layer in layers:
        del layer.forward
    vae.eval()
    latents = encode(vae, films[:2048])
    across = (0, 2, 3, 4)
    vae.register_to_config(
        latents_mean=latents.mean(across).tolist(), latents_std=latents.std(across).tolist()
    )
    return _rms(mean_error)


def _by_frames(vae: AutoencoderKLWan) -> list[nn.Module]:
    """Lets the convolutions over pixels read frames one by one, three times as fast: equal to what
    they do while their weights for the frames before are 0, which then get no gradient. Returns
    these layers; only `time_conv` looks at several frames.
    """

    def forward(layer: Any, x: Tensor, _cache: Tensor | None = None) -> Tensor:
        rows, _, frames, *_ = x.shape
        flat = x.transpose(1, 2).flatten(0, 1)
        weight, padding = layer.weight[:, :, -1], layer._padding[0]
        flat = nn.functional.conv2d(flat, weight, layer.bias, padding=padding)
        return flat.unflatten(0, (rows, frames)).transpose(1, 2)

    layers = [
        layer
        for name, layer in vae.named_modules()
        if isinstance(layer, nn.Conv3d) and not name.endswith("time_conv")
    ]
    for layer in layers:
        layer.forward = partial(forward, layer)
    return layers


def _rms(error: float) -> float:
    """Of a mean square error of pixels in [-1, 1] the root, for pixels in [0, 1]."""
    return math.sqrt(error) / 2


def _pixels(films: Tensor) -> Tensor:
    """[n, frames, 3, h, w] of uint8 as [n, 3, frames, h, w] in [-1, 1]."""
    return films.transpose(1, 2).float() / 127.5 - 1


def _decode(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """As `vae.decode`, without its clamp, which has no gradient where pixels are too bright."""
    vae.clear_cache()
    latents = vae.post_quant_conv(latents)
    parts = []
    for number in range(latents.shape[2]):
        vae._conv_idx = [0]
        part = latents[:, :, number : number + 1]
        parts.append(vae.decoder(part, vae._feat_map, vae._conv_idx, first_chunk=number == 0))
    vae.clear_cache()
    return torch.cat(parts, dim=2)


@torch.no_grad()
def encode(vae: AutoencoderKLWan, films: Tensor) -> Tensor:
    """Latents [n, channels, frames of latents, h, w] of films, scaled as the transformer takes
    them."""
    parts = [vae.encode(_pixels(some)).latent_dist.mean for some in films.split(128)]
    mean, std = (
        torch.tensor(numbers).view(-1, 1, 1, 1)
        for numbers in (vae.config.latents_mean, vae.config.latents_std)
    )
    return (torch.cat(parts) - mean) / std


def train_flow(
    pipe: WanPipeline,
    latents: Tensor,
    caption: Callable[[int], str],
    *,
    length: int,
    minutes: float,
    rate: float = 1e-3,
) -> int:
    """Flow matching of transformer and text encoder; returns the number of updates.

    caption: a prompt for the film of this index; may differ at each call. length: tokens of it.
    """

    def velocity(mixed: Tensor, sigma: Tensor, rows: Sequence[int]) -> Tensor:
        texts = [caption(row) for row in rows]
        embeds, _ = pipe.encode_prompt(
            texts, do_classifier_free_guidance=False, max_sequence_length=length
        )
        found: Tensor = pipe.transformer(
            hidden_states=mixed,
            timestep=1000 * sigma,
            encoder_hidden_states=embeds,
            return_dict=False,
        )[0]
        return found

    parts = nn.ModuleList([pipe.transformer, pipe.text_encoder])
    return match_flow(parts, velocity, latents, minutes=minutes, batch=32, rate=rate)
