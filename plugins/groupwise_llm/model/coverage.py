"""Coverage: which weights of a model have adapters, and which share of it has none."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from groupwise_llm.model.merging import own_parameters

LEAST = 0.01
"""Weights without adapters are named if they are at least this share of the model."""
MATRIX = 2
"""Dimensions of a weight that is not a stack of experts."""


def coverage(model: Any) -> str:
    """A note on what has adapters, and on what share of the weights has none; from shapes alone.

    model: peft's wrapper of a transformers model.
    """
    adapted, rest = _sizes(model, adapted=True), _sizes(model, adapted=False)
    total = sum(adapted.values()) + sum(rest.values())
    shares = [f"{name} {size / total:.1%}" for name, size in rest.most_common()]
    named = sum(size >= LEAST * total for size in rest.values())
    smaller = [f"{len(rest) - named} smaller ones"] if named < len(rest) else []
    text = (
        f"policy.lora: adapters on {', '.join(sorted(adapted))}: "
        f"{sum(adapted.values()) / total:.1%} of the weights"
    )
    return f"{text}; without adapters: {', '.join([*shares[:named], *smaller])}" if rest else text


def experts_without_adapters(model: Any) -> list[str]:
    """A note where stacked experts have no adapters, on how they would get them."""
    stacked = Counter[str]()
    for name, weight in _weights(model, adapted=False):
        if weight.ndim > MATRIX:
            stacked[_short(name)] += weight.numel()
    if not stacked:
        return []
    total = sum(_sizes(model, adapted=True).values()) + sum(_sizes(model, adapted=False).values())
    note = (
        f"policy.lora: the experts, {sum(stacked.values()) / total:.0%} of the weights, have no "
        f"adapters and are not trained; to train them set lora.options: "
        f"{{target_parameters: [{', '.join(sorted(stacked))}]}}"
    )
    return [note]


def _sizes(model: Any, *, adapted: bool) -> Counter[str]:
    """Numbers of weights by short name."""
    sizes = Counter[str]()
    for name, weight in _weights(model, adapted=adapted):
        sizes[_short(name)] += weight.numel()
    return sizes


def _weights(model: Any, *, adapted: bool) -> Iterator[tuple[str, nn.Parameter]]:
    """(name, weight) of the base model's weights with adapters (or that are trained in full), or of
    all others; a tied weight once."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    wrapped: set[int] = set()
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            wrapped.update(map(id, _wrapped(layer)))
    causal = model.get_base_model()
    for name, weight in causal.named_parameters():
        parts = name.split(".")
        if any(part.startswith("lora_") for part in parts) or "original_module" in parts:
            continue
        if adapted == (weight.requires_grad or id(weight) in wrapped):
            yield name, weight


def _wrapped(layer: Any) -> Iterable[nn.Parameter]:
    """The weights that the layer's adapters change."""
    own = own_parameters(layer.get_base_layer())
    name = getattr(layer, "parameter_name", None)
    return own.values() if name is None else [own[name]]


def _short(name: str) -> str:
    """A weight's name within its layer of the model, or the last part of it outside of layers;
    without peft's parts."""
    parts = [part for part in name.split(".") if part not in {"base_layer", "modules_to_save"}]
    parts = [part for part in parts if part not in {"default", "weight", "bias"}]
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[numbers[0] + 1 :] if numbers else parts[-1:])
