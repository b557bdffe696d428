"""Merging: the weights of a layer with its adapters merged, without changing the layer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from groupwise.kit.errors import UserError, first_line


def causal_of(model: Any) -> Any:
    """The transformers model without peft's wrapper; adapters stay in its layers."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def adapted(model: Any) -> Iterator[tuple[str, Any]]:
    """(name, layer) of each layer with active adapters that can be merged into its weights.

    Of wrappers around the same layer, one for each of its weights, the outermost: `wrappers_of`.
    Adapters on quantised weights cannot be merged, nor any that are no product of two matrices.
    """
    if not hasattr(model, "peft_config"):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    inner: set[int] = set()
    for name, layer in model.named_modules():
        if not isinstance(layer, BaseTunerLayer) or id(layer) in inner:
            continue
        wrappers = wrappers_of(layer)
        inner.update(map(id, wrappers))
        if is_active(layer) and all(map(is_mergeable, wrappers)):
            yield name, layer


def wrappers_of(layer: Any) -> list[Any]:
    """The layer of peft's, and those within it that wrap the same base layer.

    peft adapts a weight of stacked experts by a wrapper around the layer that holds it, and a
    second weight of that layer by a wrapper around the first wrapper.
    """
    wrappers = [layer]
    while hasattr(wrappers[-1].base_layer, "base_layer"):
        wrappers.append(wrappers[-1].base_layer)
    return wrappers


def is_active(layer: Any) -> bool:
    return bool(layer.active_adapters) and not layer.disable_adapters


def is_mergeable(module: Any) -> bool:
    """Whether it is a layer of peft's that computes the same with merged weights."""
    from peft.tuners import lora

    return (
        # Not their subclasses, which are for quantised layers.
        type(module) in {lora.Linear, lora.Embedding, lora.ParamWrapper}
        and not _is_quantised(module.get_base_layer())
        # Of the LoRA variants, only DoRA computes the same when merged.
        and all(module.use_dora.get(adapter, False) for adapter in module.lora_variant)
    )


@torch.no_grad()
def merged(name: str, layer: Any) -> Mapping[str, Tensor]:
    """The base layer's own parameters by name, in float32, with all active adapters merged.

    name: of the layer, for messages. peft merges into copies: the layer itself does not change, so
    repeated merging adds no rounding error. Sharded weights are gathered first, a collective.
    Raises UserError where any adapter of the layer is not merged.
    """
    base, wrappers = layer.get_base_layer(), wrappers_of(layer)
    if _is_quantised(base):
        raise UserError(
            "policy.lora: adapters on quantised weights cannot be merged; leave out policy.quantize"
        )
    with _copied(layer, base):
        try:
            for wrapper in wrappers:
                wrapper.merge()
            left = [w for w in wrappers if set(w.active_adapters) - set(w.merged_adapters)]
        except (NotImplementedError, RuntimeError, ValueError) as error:
            raise UserError(
                f"policy.lora.options: these adapters cannot be merged: {first_line(error)} "
                f"({name})"
            ) from error
        finally:
            for wrapper in wrappers:
                wrapper.merged_adapters.clear()
        if left:
            raise UserError(
                f"policy.lora: the adapters of {name} cannot be merged: peft's "
                f"{type(left[0]).__name__} leaves them out; leave the layer out of "
                f"policy.lora.targets"
            )
        return {key: weight.detach() for key, weight in own_parameters(base).items()}


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The module's parameters by name, without those of submodules."""
    return {name: weight for name, weight in module._parameters.items() if weight is not None}


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
