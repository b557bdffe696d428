"""Memory: what a run will take, from the model's configuration alone."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from groupwise_llm.settings import Settings


def estimate(config: Any, settings: Settings, *, decisions: int, training: bool) -> Mapping[str, int]:
    """Bytes of weights, gradients, optimizer, activations and logits; an estimate, not a bound.

    config: transformers' configuration; decisions: tokens in one micro-batch.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    total = sum(p.numel() for p in model.parameters())
    trained = total if settings.lora is None else _adapters(model, settings.lora.rank)
    width, layers = config.hidden_size, config.num_hidden_layers
    inner = getattr(config, "intermediate_size", 4 * width)
    # Kept for the backward pass a layer: attention's inputs, projections and output, both norms,
    # and the three products of the gated MLP.
    kept = decisions * layers * (8 * width + 3 * inner)
    size = 4 if settings.precision == "float32" else 2
    sizes = {"weights": 4 * total}
    if training:
        sizes |= {
            "gradients": 4 * trained,
            "optimizer": 8 * trained,
            "activations": size * (decisions * layers * width if settings.gradient_checkpointing else kept),
            "logits, a block at a time": 4 * 3 * min(decisions, 1024) * min(config.vocab_size, 16384),
        }
    return sizes


def _adapters(model: Any, rank: int) -> int:
    """Trained parameters of rank-r adapters on every linear layer but the head."""
    head = model.get_output_embeddings()
    return sum(
        rank * (module.in_features + module.out_features)
        for module in model.modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    )
