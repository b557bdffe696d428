"""Memory: what a run will take, from the configurations in the pipeline's folder alone."""

from collections.abc import Mapping
from typing import Any

import diffusers
import torch
from torch import nn

from groupwise_flow.flux import Flux
from groupwise_flow.loading import adapter_class, explained, read_index
from groupwise_flow.precision import HALF, stored
from groupwise_flow.settings import Settings
from groupwise_flow.skeleton import meta_model, places


def estimate(settings: Settings, *, images: int, training: bool) -> Mapping[str, int]:
    """Bytes of weights, gradients, optimizer and activations; an estimate, not a bound.

    images: as many as go through the transformer at once.
    """
    index = read_index(settings)
    adapter = adapter_class(settings, index)
    with explained(settings, "cannot read a diffusers pipeline from"):
        found = {name: meta_model(settings, name, part) for name, part in index.items()}
        parts: dict[str, Any] = {name: part for name, part in found.items() if part is not None}
    transformer = parts.pop("transformer")
    dtypes = stored(settings.precision, lora=settings.lora is not None)
    frozen = {name: dtypes.get(name, dtypes["default"]) for name in parts}
    sizes = {
        "frozen models": sum(_bytes(part, frozen[name]) for name, part in parts.items()),
        "transformer": _bytes(transformer, dtypes["transformer"]),
    }
    if not training:
        return sizes
    trained = (
        _count(transformer) if settings.lora is None else _adapters(transformer, settings, adapter)
    )
    sizes |= {"gradients": 4 * trained, "optimizer": 8 * trained}
    if settings.adapter is not None:
        return sizes  # of an architecture that is not ours to know
    config: Any = transformer.config
    width = config.num_attention_heads * config.attention_head_dim
    layers = config.num_layers + getattr(config, "num_single_layers", 0)
    # Kept for the backward pass of a token in a layer, in its widths, as measured: modulated
    # inputs, attention's projections, norms and output, and the two halves of an MLP four times as
    # wide. Checkpointing keeps the inputs of all layers and the rest of one.
    kept = 26.0
    if settings.gradient_checkpointing:
        kept = 1.5 + kept / layers
    bytes_each = HALF.get(settings.precision, torch.float32).itemsize
    packed = issubclass(adapter, Flux)
    image_tokens = _image_tokens(settings, config, packed=packed)
    tokens = image_tokens + settings.prompt_tokens
    if not packed:  # SD3 joins CLIP's tokens with T5's
        clip = getattr(parts.get("text_encoder"), "config", None)
        tokens += getattr(clip, "max_position_embeddings", 77)
    widths = tokens * layers * kept
    if not settings.gradient_checkpointing:
        # SD3.5's second attention, over the image alone, in some layers.
        widths += image_tokens * len(getattr(config, "dual_attention_layers", ())) * 9.0
    return {**sizes, "activations": int(bytes_each * images * width * widths)}


def _image_tokens(settings: Settings, config: Any, *, packed: bool) -> int:
    """packed: four latent pixels make one token, whatever the transformer's own patches."""
    where = {"subfolder": "vae", **places(settings)}
    vae = diffusers.AutoencoderKL.load_config(settings.model, **where)
    factor = 2 ** (len(vae["block_out_channels"]) - 1)
    side = factor * (2 if packed else config.patch_size)
    usual = factor * (128 if packed else config.sample_size)
    height, width = settings.height or usual, settings.width or usual
    return (height // side) * (width // side)


def _adapters(transformer: nn.Module, settings: Settings, adapter: Any) -> int:
    """Parameters of LoRA: rank x (inputs + outputs) of each linear layer it goes to."""
    assert settings.lora is not None
    targets = settings.lora.targets or adapter.targets
    return sum(
        settings.lora.rank * (module.in_features + module.out_features)
        for name, module in transformer.named_modules()
        if isinstance(module, nn.Linear)
        and any(f".{name}".endswith(f".{target}") for target in targets)
    )


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _bytes(module: nn.Module, dtype: torch.dtype) -> int:
    """Of its weights; T5 keeps some of them in float32 where the others are in fp16."""
    wide = getattr(module, "_keep_in_fp32_modules", None) or () if dtype == torch.float16 else ()
    return sum(
        p.numel() * (4 if any(part in wide for part in name.split(".")) else dtype.itemsize)
        for name, p in module.named_parameters()
    )
