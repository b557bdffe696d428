"""The whole model's weights under the names of its checkpoints, for an engine to load."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

from groupwise.kit.errors import UserError
from groupwise_llm.model.merging import (
    gathered,
    is_active,
    merged,
    own_parameters,
    wrappers_of,
)

Named = tuple[str, Tensor]


@torch.no_grad()
def plain_weights(causal: Any, dtype: torch.dtype | None) -> Iterator[Named]:
    """Every weight once, named as `save_pretrained` of the model without adapters names it.

    Adapters are merged. Sharded weights are gathered layer by layer, a collective: every rank must
    iterate over all of them. A tied weight comes once, under its first name.

    causal: a transformers model, adapters in its layers; dtype: to cast floats to, None for their
    own. Raises UserError for weights that cannot be merged or dequantised.
    """
    if getattr(causal, "is_quantized", False):
        raise UserError(
            "policy.quantize: an engine needs weights that are not quantised; leave out the "
            "section sampler, or the quantisation (policy.quantize or "
            "policy.loading.quantization_config)"
        )
    for _, part in groupby(_present(causal), key=lambda named: _block(named[0])):
        # transformers fuses some weights per layer when it loads them (experts, for example).
        for name, tensor in revert_weight_conversion(causal, dict(part)).items():
            yield name, tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor


def _present(causal: nn.Module) -> Iterator[Named]:
    """Every weight under its name in the model, adapters merged.

    Raises UserError, before the first weight, where something trained would be left out.
    """
    parts = list(_parts("", causal, set()))
    _check_complete(causal, [module for _, module in parts])
    plain: set[int] = set()
    changed: set[int] = set()
    for path, module in parts:
        own, original = _direct(_inside(module)), {id(x) for x in _original(module)}
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper):
            shared = plain | changed
            changed |= original
            if isinstance(module, BaseTunerLayer) and is_active(module):
                own |= merged(path, module)
        else:
            own = {name: tensor for name, tensor in own.items() if id(tensor) not in plain}
            shared = changed
            plain |= original
        if original & shared:
            raise UserError(
                f"policy.lora: the weight of {path} is tied to another layer's, and one of the two "
                f"has adapters or is trained by itself: merged, they differ, and an engine loads "
                f"one tied weight; leave the layer out of policy.lora, or leave out the section "
                f"sampler"
            )
        for name, tensor in own.items():
            yield f"{path}.{name}" if path else name, gathered(tensor)


def _parts(path: str, module: nn.Module, visited: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """(path, module) of every module, each once; a wrapper of peft's stands for what it wraps."""
    if id(module) in visited:
        return
    visited.add(id(module))
    yield path, module
    for name, child in _inside(module).named_children():
        yield from _parts(f"{path}.{name}" if path else name, child, visited)


def _inside(module: nn.Module) -> nn.Module:
    """What a wrapper of peft's wraps; any other module itself."""
    if isinstance(module, BaseTunerLayer):
        base: nn.Module = module.get_base_layer()
        return base
    return _copy_of(module) if isinstance(module, AuxiliaryTrainingWrapper) else module


def _original(module: nn.Module) -> Iterator[Tensor]:
    """The tensors of the model without peft at the module's place."""
    inside: Any = _inside(module)
    if isinstance(module, AuxiliaryTrainingWrapper):
        inside = module.original_module
    yield from _direct(inside).values()


def _check_complete(causal: nn.Module, parts: Iterable[nn.Module]) -> None:
    """Raise UserError for trained weights that neither are sent as they are nor get merged."""
    reached: set[int] = set()
    for module in parts:
        reached |= {id(tensor) for tensor in _direct(_inside(module)).values()}
        for wrapper in wrappers_of(module) if isinstance(module, BaseTunerLayer) else ():
            reached |= {
                id(weight)
                for name, child in wrapper.named_children()
                if name != "base_layer"
                for weight in child.parameters()
            }
            reached |= {id(weight) for weight in own_parameters(wrapper).values()}
    for name, weight in causal.named_parameters():
        if weight.requires_grad and id(weight) not in reached:
            raise UserError(
                f"policy.lora: {name} is trained, but is not part of the merged weights that an "
                f"engine needs; leave it out of policy.lora.targets, or leave out the section "
                f"sampler"
            )


def _direct(module: nn.Module) -> dict[str, Tensor]:
    """The module's own parameters and persistent buffers, without those of submodules."""
    buffers = {
        name: b
        for name, b in module._buffers.items()
        if b is not None and name not in module._non_persistent_buffers_set
    }
    return {**own_parameters(module), **buffers}


def _copy_of(wrapper: AuxiliaryTrainingWrapper) -> nn.Module:
    """The module that runs in place of the wrapped one: the trained copy, or the original."""
    if not isinstance(wrapper, ModulesToSaveWrapper):
        raise UserError(
            f"policy.lora: {type(wrapper).__name__} of peft cannot be merged into plain weights, "
            f"which an engine needs; leave out the section sampler, or these options"
        )
    active = wrapper.active_adapters
    return wrapper.modules_to_save[active[0]] if active else wrapper.original_module


def _block(name: str) -> str:
    """The part of a weight's name up to its layer's number; "" outside of layers."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else ""
