"""Merging: the weights of a layer with its adapters merged, without changing the layer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from groupwise.errors import UserError, first_line


def causal_of(model: Any) -> Any:
    """The transformers model without peft's wrapper; adapters stay in its layers."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def adapted(model: Any) -> Iterator[tuple[str, Any]]:
    """(name, layer) of each layer with active adapters that can be merged into its weight.

    Adapters on quantised weights cannot be merged, nor any that are no product of two matrices.
    """
    if not hasattr(model, "peft_config"):
        return
    for name, layer in model.named_modules():
        if is_mergeable(layer) and not layer.disable_adapters and layer.active_adapters:
            yield name, layer


def is_mergeable(module: Any) -> bool:
    """Whether it is a layer of peft's that computes the same with merged weights."""
    from peft.tuners import lora

    return (
        # Not their subclasses, which are for quantised layers and experts.
        type(module) in {lora.Linear, lora.Embedding}
        and not _is_quantised(module.get_base_layer())
        # Of the LoRA variants, only DoRA computes the same when merged.
        and all(module.use_dora.get(adapter, False) for adapter in module.lora_variant)
    )


@torch.no_grad()
def merged(layer: Any) -> Mapping[str, Tensor]:
    """The base layer's parameters by name, in float32, with the active adapters merged.

    peft merges into copies: the layer itself does not change, so repeated merging adds no rounding
    error. Sharded weights are gathered first, a collective. Raises UserError for adapters that
    cannot be merged.
    """
    base = layer.get_base_layer()
    if _is_quantised(base):
        raise UserError(
            "policy.lora: adapters on quantised weights cannot be merged; leave out policy.quantize"
        )
    with _copied(layer, base):
        try:
            layer.merge()
        except (NotImplementedError, RuntimeError, ValueError) as error:
            raise UserError(
                f"policy.lora.options: these adapters cannot be merged: {first_line(error)}"
            ) from error
        finally:
            layer.merged_adapters.clear()
        return {name: weight.detach() for name, weight in base.named_parameters()}


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor; a collective where it is sharded."""
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach()


@contextmanager
def _copied(layer: nn.Module, base: nn.Module) -> Iterator[None]:
    """The layer with float32 copies of its base weights, and with sharded weights gathered: peft
    multiplies whole tensors."""
    places = [
        (module._parameters, name, weight)
        for module in layer.modules()
        for name, weight in module._parameters.items()
        if weight is not None and (module is base or isinstance(weight, DTensor))
    ]
    for own, name, weight in places:
        copy = gathered(weight)
        if own is base._parameters:
            copy = copy.to(torch.float32, copy=True)
        own[name] = nn.Parameter(copy, requires_grad=False)
    try:
        yield
    finally:
        for own, name, weight in places:
            own[name] = weight


def _is_quantised(base: nn.Module) -> bool:
    return any(weight.element_size() < 2 for weight in base.parameters())
