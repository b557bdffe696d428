"""Merging: the weights of layers with adapters, as a model without adapters would have them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from groupwise.errors import UserError, first_line


@torch.no_grad()
def merged(layer: Any) -> Mapping[str, Tensor]:
    """By name what the layer beneath the adapters has, with those of its adapters merged that are
    active; the layer itself stays as it is.

    layer: one of peft's, of any kind that can merge. Its sharded weights are gathered first, a
    collective. Raises UserError for adapters that peft cannot merge.
    """
    base = layer.get_base_layer()
    with _plain(layer):
        before = {name: p.data for name, p in base.named_parameters()}
        # On a copy: what is added in place and subtracted again would not be the same bits.
        try:
            layer.merge(safe_merge=True)
            return {name: p.data for name, p in base.named_parameters()}
        except (NotImplementedError, RuntimeError, ValueError) as error:
            raise UserError(
                f"policy.lora.options: these adapters cannot be merged: {first_line(error)}"
            ) from error
        finally:
            for name, p in base.named_parameters():
                p.data = before[name]
            layer.merged_adapters.clear()


def gathered(tensor: Tensor) -> Tensor:
    """All of a tensor, wherever its parts lie; a collective where it is sharded."""
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach()


@contextmanager
def _plain(layer: nn.Module) -> Iterator[None]:
    """The layer with its sharded parameters gathered: peft multiplies tensors, and not shards."""
    sharded = [
        (module, name, p)
        for module in layer.modules()
        for name, p in module._parameters.items()
        if isinstance(p, DTensor)
    ]
    for module, name, p in sharded:
        whole = p.full_tensor()  # type: ignore[union-attr]
        module._parameters[name] = nn.Parameter(whole, requires_grad=False)
    try:
        yield
    finally:
        for module, name, p in sharded:
            module._parameters[name] = p
