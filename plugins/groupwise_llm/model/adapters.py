"""Adapters: a model wrapped by peft, what no token reaches left out."""

import re
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from groupwise.errors import UserError, first_line
from groupwise_llm.settings import Lora

OWN = {"r": "rank", "lora_alpha": "alpha", "target_modules": "targets"}
"""Arguments of peft that have a setting of their own."""
ZERO = re.compile(r"lora_(B|embedding_A)\b")
"""Weights of adapters that are zero where these begin as nothing, and not by another scheme."""
SAVED = re.compile(r"modules_to_save\.\w+")
"""Where, beside the module itself, peft keeps the copy of it that is trained."""
REFUSED = re.compile(r"[Mm]odule .* is (not supported|incompatible)", re.DOTALL)
"""What peft says of a module that it cannot give adapters."""


def with_adapters(model: Any, lora: Lora, *, revision: str | None = None) -> Any:
    """The model with adapters, these in float32; the model's own weights no longer need gradients.

    revision: the base model's, which the saved adapter names.
    """
    from peft import get_peft_model

    config = _config(model, lora)
    try:
        with warnings.catch_warnings():
            # peft asks transformers whether it checkpoints by a name that is about to go.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            # GPT-2's transposed layers, which it then treats as they are.
            warnings.filterwarnings("ignore", "fan_in_fan_out", UserWarning)
            # Of experts, which are no linear layers and get adapters only by their names.
            warnings.filterwarnings("ignore", ".*_pattern keys did not match", RuntimeWarning)
            return get_peft_model(model, config, autocast_adapter_dtype=True, revision=revision)
    except (TypeError, ValueError, NotImplementedError) as error:
        refused = REFUSED.search(str(error))
        hint = " (lora.options: {exclude_modules: [...]} leaves modules out)" if refused else ""
        raise UserError(f"policy.lora: {error}{hint}") from error


def are_idle(model: Any) -> bool:
    """Whether the model answers as it would without its adapters, and what is trained of it is left
    out with them. False without adapters."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return hasattr(model, "peft_config") and all(
        "modules_to_save" in name or ("lora_" in name and not (ZERO.search(name) and _any(p)))
        for name, p in trained.items()
    )


def idle_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of what is trained, by name, with which the model answers as without its adapters.

    model: one that is idle without them, or any module around it.

    One factor of each adapter is 0, the other as at present: their product is 0 with any. Modules
    that are trained in whole are as they were.
    """
    weights = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and ZERO.search(name):
            weights[name] = torch.zeros_like(parameter)
        elif parameter.requires_grad:
            begun = SAVED.sub("original_module", name)
            weights[name] = model.get_parameter(begun).detach().to(parameter, copy=True)
    return weights


def _any(weight: Tensor) -> bool:
    """Whether any number of it is not zero, on whichever process."""
    there = weight.any()
    return bool(there.full_tensor() if isinstance(there, DTensor) else there)


def _config(model: Any, lora: Lora) -> Any:
    """peft's own configuration. Raises UserError for options that it does not take."""
    from peft import LoraConfig

    for name in OWN.keys() & lora.options.keys():
        raise UserError(f"policy.lora.options: {name} is set by policy.lora.{OWN[name]}")
    names = [name for name, _ in model.named_modules()]
    saved = lora.options.get("modules_to_save") or []
    if not isinstance(saved, list):
        raise UserError(f"policy.lora.options: modules_to_save: expected a list, found {saved!r}")
    # peft passes over those that are not there.
    for kept in saved:
        if not any(name.endswith(kept) for name in names):
            raise UserError(
                f"policy.lora.options: modules_to_save: the model has no module {kept!r}"
            )
    options = {"task_type": "CAUSAL_LM", "lora_dropout": 0.0, **lora.options}
    options["exclude_modules"] = _excluded(model, options.get("exclude_modules"))
    try:
        return LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha or 2 * lora.rank,
            target_modules=lora.targets,
            **options,
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"policy.lora.options: {first_line(error)}") from error


def _excluded(model: Any, own: str | list[str] | None) -> str | list[str] | None:
    """The modules that get no adapters: those that are frozen already, beside the user's own."""
    frozen = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and not module.weight.requires_grad
        # Quantised weights are integers, which never require a gradient.
        and module.weight.is_floating_point()
    ]
    if not frozen:
        return own
    if isinstance(own, str):
        return "|".join([own, *map(re.escape, frozen)])
    return [*(own or []), *frozen]
