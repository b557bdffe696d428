"""LoRA by peft: adding adapters to a model, and saving them so that every reader scales them
right."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.kit.errors import UserError, first_line
from groupwise_flow.model.sharding import whole
from groupwise_flow.settings import Lora

UNSAVED_OPTIONS = ("bias", "layer_replication", "modules_to_save", "target_parameters")


def add_lora(model: Any, lora: Lora, targets: Sequence[str]) -> None:
    """Add trainable float32 adapters; targets: the modules, unless the settings name others."""
    from peft import LoraConfig

    _check_options(lora.options)
    options = {"lora_dropout": 0.0, "init_lora_weights": "gaussian", **lora.options}
    targets = list(lora.targets or targets)
    if not targets:
        raise UserError("policy.lora.targets: the model's adapter names no modules; set it")
    try:
        config = LoraConfig(
            r=lora.rank, lora_alpha=lora.alpha or 2 * lora.rank, target_modules=targets, **options
        )
        with model.device:  # so that peft creates them there
            model.add_adapter(config)
    except (TypeError, ValueError, re.error) as error:
        raise UserError(f"policy.lora: {first_line(error)}") from error
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)


def adds_nothing(weights: Mapping[str, Tensor]) -> bool:
    """Whether adapters with these weights, by name, change no output: all lora_B are 0."""
    seconds = [value for name, value in weights.items() if ".lora_B." in name]
    if len(seconds) + sum(".lora_A." in name for name in weights) < len(weights) or not seconds:
        return False
    return not bool(torch.stack(torch._foreach_norm(seconds)).any())


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise UserError for options that train weights which a file of LoRA weights cannot store."""
    lost = [name for name in UNSAVED_OPTIONS if options.get(name) not in (None, "none")]
    if lost:
        raise UserError(
            f"policy.lora.options: {lost[0]} would train weights that `load_lora_weights` does not "
            f"read; leave it out, or train the full model (no `lora`)"
        )
    init = options.get("init_lora_weights", "gaussian")
    if init not in (True, False, "gaussian", "orthogonal"):
        raise UserError(
            f"policy.lora.options: init_lora_weights: {init} changes the model's own weights, so "
            f"saved adapters would not fit the original model; expected true, false, gaussian or "
            f"orthogonal"
        )


def with_unit_scale(model: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The adapters' weights and configuration, with the scale alpha / rank multiplied into B.

    Readers that ignore metadata assume alpha = rank: with alpha = 2 rank they would apply half the
    adapter. Sharded weights are gathered, a collective: every rank must call this.
    """
    from peft import get_peft_model_state_dict

    scales = {
        name: module.scaling["default"]
        for name, module in model.named_modules()
        if hasattr(module, "scaling")
    }
    layers = {}
    for name, weight in get_peft_model_state_dict(model).items():
        layer, second, _ = name.partition(".lora_B")
        layers[name] = whole(weight * scales[layer] if second else weight).detach().cpu()
    config = model.peft_config["default"].to_dict()
    ranks = {"lora_alpha": config["r"], "alpha_pattern": dict(config["rank_pattern"])}
    return layers, {**config, **ranks, "use_rslora": False}
