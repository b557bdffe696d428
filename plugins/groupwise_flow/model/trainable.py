"""The trained model: which of a pipeline's weights have gradients, and what is recomputed."""

from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from groupwise.kit.attention import without_cudnn
from groupwise.kit.lora import adding
from groupwise_flow.adapter import Adapter
from groupwise_flow.model.lora import add_lora
from groupwise_flow.settings import Settings


def fitted(pipeline: Any, make: type[Adapter], settings: Settings) -> Adapter:
    """The pipeline behind an adapter of class `make`, with gradients only for trained weights.

    Its models may be on the meta device. Raises UserError for sizes and LoRA that do not fit it.
    """
    pipeline.set_progress_bar_config(disable=True)
    adapter = make(
        pipeline,
        height=settings.height,
        width=settings.width,
        frames=settings.frames,
        frame_rate=settings.frame_rate,
        prompt_tokens=settings.prompt_tokens,
        options=None if settings.adapter is None else settings.adapter.options,
    )
    if settings.tiled_decoding:
        adapter.tile()
    models = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    for module in models:
        module.requires_grad_(False)
    _make_trainable(adapter, settings)
    for module in models:
        module.eval()  # always: with dropout, sampling and training log-probs would differ
    return adapter


def _make_trainable(adapter: Adapter, settings: Settings) -> None:
    """Make LoRA adapters trainable, in float32, or all weights of the trained models."""
    models: list[Any] = [*adapter.models.values()]
    if settings.gradient_checkpointing:
        for model in models:
            model.enable_gradient_checkpointing(_recomputed)
    if settings.lora is None:
        for model in models:
            model.requires_grad_(True)
        return
    with adding(models, settings.lora, settings.lora.targets or ()):
        for model in models:
            add_lora(model, settings.lora, adapter.targets)


def _recomputed(block: Any, *inputs: Any) -> Any:
    """Run a block with checkpointing; blocks draw no random numbers, so no RNG state is stored."""
    return checkpoint(
        block,
        *inputs,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), without_cudnn()),
    )
