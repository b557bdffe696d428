"""Merging: the weights of a layer with its adapters merged, the layer itself left as it is."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from groupwise.errors import UserError, first_line


def causal_of(model: Any) -> Any:
    """The causal model, adapters unwrapped (they stay in its layers)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def adapted(model: Any) -> Iterator[tuple[str, Any]]:
    """(name, layer) of each layer that answers with adapters which can be one weight with it.

    Adapters beside quantised weights cannot, and such as are no product of two matrices.
    """
    if not hasattr(model, "peft_config"):
        return
    for name, layer in model.named_modules():
        if is_mergeable(layer) and not layer.disable_adapters and layer.active_adapters:
            yield name, layer


def is_mergeable(module: Any) -> bool:
    """Whether it is a layer of peft's that answers as one with merged weights would."""
    from peft.tuners import lora

    return (
        # Not those derived from them: of quantised layers, of experts.
        type(module) in {lora.Linear, lora.Embedding}
        and not _is_quantised(module.get_base_layer())
        # DoRA is the one variant of LoRA that does not change what a pass computes.
        and all(module.use_dora.get(adapter, False) for adapter in module.lora_variant)
    )


@torch.no_grad()
def merged(layer: Any) -> Mapping[str, Tensor]:
    """By name what the layer beneath the adapters has, in float32, with those of its adapters
    merged that are active.

    By peft's own rule and on copies: nothing of the layer changes, so nothing drifts. Sharded
    weights are gathered first, a collective. Raises UserError for adapters that cannot be merged.
    """
    base = layer.get_base_layer()
    if _is_quantised(base):
        raise UserError(
            "policy.lora: adapters beside quantised weights cannot be merged with them; leave out "
            "policy.quantize"
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
    """All of a tensor, wherever its parts lie; a collective where it is sharded."""
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach()


@contextmanager
def _copied(layer: nn.Module, base: nn.Module) -> Iterator[None]:
    """The layer with copies in float32 of its base's weights, and with all that is sharded
    gathered, as peft multiplies tensors and not shards."""
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
