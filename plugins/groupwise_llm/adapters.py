"""Adapters: a model wrapped by peft, what no token reaches left out."""

import re
import warnings
from typing import Any

from torch import nn

from groupwise.errors import UserError
from groupwise_llm.settings import Lora


def with_adapters(model: Any, lora: Lora, *, revision: str | None = None) -> Any:
    """The model with adapters, these in float32; the model's own weights no longer need gradients.

    revision: the base model's, which the saved adapter names.
    """
    from peft import LoraConfig, get_peft_model

    options = {"lora_dropout": 0.0, **lora.options}
    try:
        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=lora.rank,
            lora_alpha=lora.alpha or 2 * lora.rank,
            target_modules=lora.targets,
            **{**options, "exclude_modules": _excluded(model, options.get("exclude_modules"))},
        )
        with warnings.catch_warnings():
            # peft asks transformers whether it checkpoints by a name that is about to go.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            # GPT-2's transposed layers, which it then treats as they are.
            warnings.filterwarnings("ignore", "fan_in_fan_out", UserWarning)
            # Of experts, which are no linear layers and get adapters only by their names.
            warnings.filterwarnings("ignore", ".*_pattern keys did not match", RuntimeWarning)
            return get_peft_model(model, config, autocast_adapter_dtype=True, revision=revision)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"policy.lora: {error} (lora.options: {{exclude_modules: [...]}} leaves modules out)"
        ) from error


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
