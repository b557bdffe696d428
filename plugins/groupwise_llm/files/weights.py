"""Weights: those of the whole model under the names of its checkpoints, for an engine to load."""

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

    Those of a layer are at hand at once, and no more. Adapters are merged, sharded weights
    gathered: all processes must iterate alike. A tied weight comes once, by its first name.

    causal: of transformers, adapters in its layers; dtype: of floats, None for their own.
    Raises UserError for weights that have no plain form.
    """
    if getattr(causal, "is_quantized", False):
        raise UserError(
            "policy.quantize: an engine gets plain weights, and this model's are quantised; leave "
            "out the section sampler, or quantize (policy.loading.quantization_config, where that "
            "is what quantises them)"
        )
    for _, part in groupby(_present(causal), key=lambda named: _block(named[0])):
        # Some models are fused as they are loaded (experts, say), by layer.
        for name, tensor in revert_weight_conversion(causal, dict(part)).items():
            yield name, tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor


def _present(causal: nn.Module) -> Iterator[Named]:
    """Every weight under the name that its module has, adapters merged."""
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
                f"policy.lora: the weight of {path} is tied to another layer's, and one of them "
                f"has adapters: merged, there are two weights, and an engine has room for one; "
                f"leave it out of policy.lora.targets, or leave out the section sampler"
            )
        for name, tensor in own.items():
            yield prefix + name, gathered(tensor)


def _direct(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and saved buffers of the module itself, without those of modules in it."""
    parameters = {name: p for name, p in module._parameters.items() if p is not None}
    buffers = {
        name: b
        for name, b in module._buffers.items()
        if b is not None and name not in module._non_persistent_buffers_set
    }
    return {**parameters, **buffers}


def _copy_of(wrapper: AuxiliaryTrainingWrapper) -> nn.Module:
    """The module that answers in place of the one that is wrapped."""
    if not isinstance(wrapper, ModulesToSaveWrapper):
        raise UserError(
            f"policy.lora: {type(wrapper).__name__} of peft has no plain form, which an engine "
            f"needs; leave out the section sampler, or these options"
        )
    active = wrapper.active_adapters
    return wrapper.modules_to_save[active[0]] if active else wrapper.original_module


def _block(name: str) -> str:
    """What of a name says in which layer the weight lies: all before the second number."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else ""
