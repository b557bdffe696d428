"""Memory: what a run will take, from the model's configuration alone."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from groupwise_llm.likelihood import TOKENS, VOCABULARY
from groupwise_llm.loading import with_adapters
from groupwise_llm.settings import Settings


def estimate(
    config: Any, settings: Settings, *, decisions: int, training: bool
) -> Mapping[str, int]:
    """Bytes of weights, gradients, optimizer, activations and logits; an estimate, not a bound.

    config: transformers' configuration; decisions: tokens in one micro-batch.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        if settings.lora is not None:
            model = with_adapters(model, settings)
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    # A model of several modalities keeps its language model's sizes one level down.
    text = config.get_text_config()
    width, layers = text.hidden_size, text.num_hidden_layers
    inner = getattr(text, "intermediate_size", None) or 4 * width
    # Kept for the backward pass a layer: attention's inputs, projections and output, both norms,
    # and the three products of the gated MLP.
    kept = decisions * layers * (8 * width + 3 * inner)
    size = 4 if settings.precision == "float32" else 2
    sizes = {"weights": 4 * total}
    if training:
        sizes |= {
            "gradients": 4 * trained,
            "optimizer": 8 * trained,
            "activations": size
            * (decisions * layers * width if settings.gradient_checkpointing else kept),
            "logits, a block at a time": 4
            * 3
            * min(decisions, TOKENS)
            * min(text.vocab_size, VOCABULARY),
        }
    return sizes
