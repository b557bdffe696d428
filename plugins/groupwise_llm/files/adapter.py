"""An adapter alone, in the files that peft saves, for an engine that has the base model itself."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from groupwise_llm.files.sharding import AT_RANDOM
from groupwise_llm.model.merging import gathered, is_active

FACTOR = re.compile(r"\.(lora_[AB])\.default\.weight$")
"""Names of the two factors of a layer's adapter."""
OTHERWISE = ("use_dora", "lora_bias", "layer_replication", "alora_invocation_tokens", "use_qalora")
"""Arguments of peft that change what an adapter computes."""


def more_than_factors(model: Any) -> str | None:
    """What is trained or changed besides two factors for each linear layer; None if nothing is.

    model: with peft's adapters. Engines apply the factors to layers of the original base model.
    """
    config = model.peft_config["default"]
    for option in (*OTHERWISE, "target_parameters"):
        if getattr(config, option, None):
            return f"policy.lora.options.{option}"
    scheme = config.init_lora_weights
    if isinstance(scheme, str) and scheme not in AT_RANDOM:
        return f"policy.lora.options.init_lora_weights: {scheme}"
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not FACTOR.search(name):
            return f"{name}, which is trained,"
    return None


def rank_of(model: Any) -> int:
    """The largest rank of the adapters of any layer."""
    config = model.peft_config["default"]
    return max([config.r, *config.rank_pattern.values()])


@torch.no_grad()
def factors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The factors by the names that peft saves; zeros where the adapters are switched off. Sharded
    ones are gathered, a collective."""
    from peft.tuners.tuners_utils import BaseTunerLayer  # peft takes a second to import

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    active = all(is_active(layer) for layer in layers)
    for name, parameter in model.named_parameters():
        if FACTOR.search(name):
            value = gathered(parameter)
            yield FACTOR.sub(r".\1.weight", name), value if active else torch.zeros_like(value)


def write(model: Any, tensors: dict[str, Tensor], folder: Path) -> None:
    """Write the files of these factors, over earlier ones. Raises OSError, SafetensorError."""
    folder.mkdir(exist_ok=True)
    model.peft_config["default"].save_pretrained(str(folder))
    save_file(tensors, folder / "adapter_model.safetensors")
