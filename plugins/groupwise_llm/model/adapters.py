"""Adapters: wrapping a model by peft, without the modules that no text token reaches."""

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from groupwise.kit.errors import UserError, first_line
from groupwise.kit.lora import adding
from groupwise_llm.settings import Lora

OWN = {"r": "rank", "lora_alpha": "alpha", "target_modules": "targets"}
"""Arguments of peft that have a setting of their own here."""
ZERO = re.compile(r"lora_(B|embedding_A)\b")
"""Names of the adapter weights that peft's default initialisation sets to zero."""
SAVED = re.compile(r"modules_to_save\.\w+")
"""Where peft keeps the trained copy of a module that is trained in full."""
NOISE, FROM_ZERO = 0.05, 0.02
"""Standard deviation of the numbers that `perturbed` adds: relative to the weight's root mean
square, and to weights of zero. Adapters then change a layer's output by about a tenth."""
ALL = "all-linear"
"""The setting `targets` that leaves the choice of layers to peft."""
REFUSED = re.compile(r"[Mm]odule .* is (not supported|incompatible)", re.DOTALL)
"""peft's message for a module that cannot have adapters."""


def with_adapters(model: Any, lora: Lora, *, revision: str | None = None) -> Any:
    """The model with adapters in float32, its own weights frozen.

    revision: of the base model, written into the saved adapter's configuration. Raises UserError
    for settings that peft refuses, or that name layers which the model does not have.
    """
    from peft import get_peft_model

    config = _config(model, lora)
    # Of the names of an older transformers, those of experts are now in `target_parameters`.
    listed = [] if isinstance(lora.targets, str) else lora.targets
    names = [name for name in listed if name in config.target_modules]
    with adding([model], lora, names), warnings.catch_warnings():
        # peft reads an attribute that transformers has deprecated.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        # GPT-2's layers are transposed; peft warns, and corrects the option by itself.
        warnings.filterwarnings("ignore", "fan_in_fan_out", UserWarning)
        try:
            return get_peft_model(model, config, autocast_adapter_dtype=True, revision=revision)
        except (TypeError, ValueError, NotImplementedError, re.error) as error:
            refused = REFUSED.search(str(error))
            hint = " (lora.options: {exclude_modules: [...]} leaves modules out)" if refused else ""
            raise UserError(f"policy.lora: {error}{hint}") from error


def are_idle(model: Any) -> bool:
    """Whether disabling the adapters changes no output: their zero-initialised factor is still 0,
    and nothing else is trained but modules that peft disables with them. False without adapters."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return hasattr(model, "peft_config") and all(
        "modules_to_save" in name or ("lora_" in name and not (ZERO.search(name) and _any(p)))
        for name, p in trained.items()
    )


def idle_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the trained weights, by name, that give the outputs of the model without adapters.

    model: one for which only adapters and `modules_to_save` are trained, or a module around it.

    One factor of each adapter is 0 and the other as at present, so their product is 0. Modules that
    are trained in full have their original weights.
    """
    weights = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and ZERO.search(name):
            weights[name] = torch.zeros_like(parameter)
        elif parameter.requires_grad:
            original = SAVED.sub("original_module", name)
            weights[name] = model.get_parameter(original).detach().to(parameter, copy=True)
    return weights


@contextmanager
def perturbed(model: nn.Module) -> Iterator[None]:
    """The context in which random numbers are added to every trained weight; then it is as before.

    New adapters add nothing, so a pass that leaves them out cannot be told from one that applies
    them. Sharded weights are changed shard by shard.
    """
    trained = [_own(p) for p in model.parameters() if p.requires_grad]
    before = [weight.clone() for weight in trained]
    with torch.no_grad():
        for weight in trained:
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
            scale = float(weight.float().square().mean().sqrt()) if weight.numel() else 0.0
            weight.add_((NOISE * scale or FROM_ZERO) * noise.to(weight))
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(trained, before, strict=True):
                weight.copy_(value)


def _own(weight: Tensor) -> Tensor:
    """This process's part of a weight, which shares its memory."""
    own: Tensor = weight.to_local() if isinstance(weight, DTensor) else weight
    return own.detach()


def _any(weight: Tensor) -> bool:
    """Whether any element is not zero, in any process's shard."""
    nonzero = weight.any()
    return bool(nonzero.full_tensor() if isinstance(nonzero, DTensor) else nonzero)


def _config(model: Any, lora: Lora) -> Any:
    """peft's LoraConfig. Raises UserError for options that it does not take."""
    from peft import LoraConfig

    for name in OWN.keys() & lora.options.keys():
        raise UserError(f"policy.lora.options: set policy.lora.{OWN[name]} instead of {name}")
    names = [name for name, _ in model.named_modules()]
    saved = lora.options.get("modules_to_save") or []
    if not isinstance(saved, list):
        raise UserError(f"policy.lora.options: modules_to_save: expected a list, found {saved!r}")
    # peft silently ignores names that match no module.
    for kept in saved:
        if not any(name.endswith(kept) for name in names):
            raise UserError(
                f"policy.lora.options: modules_to_save: the model has no module {kept!r}"
            )
    options = {"task_type": "CAUSAL_LM", "lora_dropout": 0.0, **lora.options}
    chosen = routers_of(model) if lora.targets == ALL else {}
    options["exclude_modules"] = _excluded(model, options.get("exclude_modules"), chosen)
    try:
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha or 2 * lora.rank,
            target_modules=lora.targets,
            **options,
        )
        _convert(config, model)
    except (TypeError, ValueError) as error:
        raise UserError(f"policy.lora.options: {first_line(error)}") from error
    if chosen:
        _leave_out(config, chosen, set(options.get("target_parameters") or ()))
    return config


def routers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of a mixture of experts that choose a token's experts, by name."""
    routers = {}
    for name, module in model.named_modules():
        parent, _, leaf = name.rpartition(".")
        beside = leaf == "gate" and hasattr(model.get_submodule(parent), "experts")
        if beside or leaf == "router" or "Router" in type(module).__name__:
            routers[name] = module
    return routers


def _convert(config: Any, model: nn.Module) -> None:
    """Put parameters in the place of target modules whose weights transformers stacks (experts)."""
    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # an older peft, which adapts linear layers alone
        return
    convert_peft_config_for_transformers(config, model, None)


def _leave_out(config: Any, modules: Mapping[str, nn.Module], own: set[str]) -> None:
    """Take the parameters of these modules from those that peft adapts, except the user's `own`.

    "all-linear" becomes names of parameters where experts are stacked, routers among them.
    """
    parameters = [
        f".{name}.{key}" for name, module in modules.items() for key, _ in module.named_parameters()
    ]
    config.target_parameters = {
        target
        for target in config.target_parameters or ()
        if target in own or not any(name.endswith(f".{target}") for name in parameters)
    }


def _excluded(
    model: Any, own: str | list[str] | None, routers: Mapping[str, nn.Module]
) -> str | list[str] | None:
    """The modules that get no adapters: the user's own list, the layers already frozen, and the
    linear layers of these routers."""
    frozen = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and not module.weight.requires_grad
        # Quantised weights are integers and never require a gradient, but may have adapters.
        and module.weight.is_floating_point()
    ]
    choosing = [
        f"{name}.{part}".rstrip(".")
        for name, router in routers.items()
        for part, layer in router.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    names = list(dict.fromkeys([*frozen, *choosing]))
    if not names:
        return own
    if isinstance(own, str):
        return "|".join([own, *map(re.escape, names)])
    return [*(own or []), *names]
