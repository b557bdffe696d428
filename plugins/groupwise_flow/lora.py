"""LoRA by peft: adapters put into a model, and written so that every reader gets their strength."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.errors import UserError, first_line
from groupwise_flow.settings import Lora
from groupwise_flow.sharding import whole

UNSAVED_OPTIONS = ("bias", "layer_replication", "modules_to_save", "target_parameters")


def add_lora(model: Any, lora: Lora, targets: Sequence[str]) -> None:
    """Trainable adapters in float32; targets: where they go unless the settings say otherwise."""
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
        with model.device:  # where peft, too, should make them
            model.add_adapter(config)
    except (TypeError, ValueError) as error:
        raise UserError(f"policy.lora: {first_line(error)}") from error
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)


def adds_nothing(weights: Mapping[str, Tensor]) -> bool:
    """Whether with these weights of adapters, by name, a model answers as without any adapters."""
    seconds = [value for name, value in weights.items() if ".lora_B." in name]
    if len(seconds) + sum(".lora_A." in name for name in weights) < len(weights) or not seconds:
        return False
    return not bool(torch.stack(torch._foreach_norm(seconds)).any())


def _check_options(options: Mapping[str, Any]) -> None:
    """UserError for what a file of LoRA weights, read onto the model's own, would not hold."""
    lost = [name for name in UNSAVED_OPTIONS if options.get(name) not in (None, "none")]
    if lost:
        raise UserError(
            f"policy.lora.options: {lost[0]} would train what `load_lora_weights` does not read; "
            f"leave it out, or train all of the model without `lora`"
        )
    init = options.get("init_lora_weights", "gaussian")
    if init not in (True, False, "gaussian", "orthogonal"):
        raise UserError(
            f"policy.lora.options: init_lora_weights: {init} changes the model's own weights, so "
            f"that the adapters would not fit them when they are loaded; expected true, false, "
            f"gaussian or orthogonal"
        )


def of_scale_one(model: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The adapters' weights and configuration, their scale alpha / rank multiplied into B.

    Readers that take no metadata take alpha to be the rank, and would halve adapters of twice it.
    Those of a model that is divided among processes are gathered: all must ask for them.
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
