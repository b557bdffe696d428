"""The whole model's weights under the names of its checkpoints, for an engine to load."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

from groupwise.errors import UserError
from groupwise_llm.model.merging import gathered, merged

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
    """Every weight under its name in the model, adapters merged."""
    plain: set[int] = set()
    adapted: set[int] = set()
    skipped: tuple[str, ...] = ()
    for path, module in causal.named_modules():
        if path.startswith(skipped) and skipped:
            continue
        prefix = f"{path}." if path else ""
        if isinstance(module, BaseTunerLayer):
            skipped = (*skipped, prefix)
            base = dict(module.get_base_layer().named_parameters())
            shared = plain | adapted
            adapted |= {id(p) for p in base.values()}
            own = base if module.disable_adapters else merged(module)
        else:
            if isinstance(module, AuxiliaryTrainingWrapper):
                skipped = (*skipped, prefix)
                base = dict(_copy_of(module).named_parameters())
            else:
                base = _direct(module)
            own = {name: tensor for name, tensor in base.items() if id(tensor) not in plain}
            shared = adapted
            plain |= {id(tensor) for tensor in base.values()}
        if any(id(tensor) in shared for tensor in base.values()):
            raise UserError(
                f"policy.lora: the weight of {path} is tied to another layer's, and one of the two "
                f"has adapters: merged, they differ, and an engine loads one tied weight; leave "
                f"the layer out of policy.lora.targets, or leave out the section sampler"
            )
        for name, tensor in own.items():
            yield prefix + name, gathered(tensor)


def _direct(module: nn.Module) -> dict[str, Tensor]:
    """The module's own parameters and persistent buffers, without those of submodules."""
    parameters = {name: p for name, p in module._parameters.items() if p is not None}
    buffers = {
        name: b
        for name, b in module._buffers.items()
        if b is not None and name not in module._non_persistent_buffers_set
    }
    return {**parameters, **buffers}


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
