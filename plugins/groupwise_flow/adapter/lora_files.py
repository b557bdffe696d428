"""LoraFiles: how trained LoRA weights become files that diffusers reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusers.loaders.lora_base import LoraBaseMixin
from torch import Tensor


@dataclass(frozen=True)
class LoraWeights:
    """The adapters of one component: layers: tensors by name, in CPU memory; config: peft's."""

    layers: Mapping[str, Tensor]
    config: Mapping[str, Any]


class LoraFiles:
    """The part of an adapter that is about saved LoRA weights."""

    pipeline: Any
    trained: Sequence[str]

    def save_lora(self, folder: Path, weights: Mapping[str, LoraWeights]) -> None:
        """Write the LoRA weights of each trained component into a folder that exists.

        By the pipeline's own `save_lora_weights`; where the pipeline has none, a file for each
        component. Every run tries it before its first step, with tensors of one number.
        """
        if not self._has_own_files:
            for name, each in weights.items():
                write_lora(folder, file_of(name), each, prefix=name)
            return
        arguments: dict[str, Any] = {}
        for name, each in weights.items():
            arguments[f"{name}_lora_layers"] = dict(each.layers)
            arguments[f"{name}_lora_adapter_metadata"] = dict(each.config)
        self.pipeline.save_lora_weights(folder, **arguments)

    @property
    def lora_code(self) -> Sequence[str]:
        """Lines of Python that read what `save_lora` wrote into a `pipeline`; the folder is
        `{path}`. The model card has them."""
        if self._has_own_files:
            return ('pipeline.load_lora_weights("{path}")',)
        return [
            f'pipeline.{name}.load_lora_adapter("{{path}}", weight_name="{file_of(name)}", '
            f'prefix="{name}")'
            for name in self.trained
        ]

    @property
    def _has_own_files(self) -> bool:
        return hasattr(self.pipeline, "save_lora_weights")


def file_of(component: str) -> str:
    """The file of a component's LoRA weights, where it has one of its own."""
    return f"{component}_lora_weights.safetensors"


def write_lora(folder: Path, name: str, weights: LoraWeights, *, prefix: str) -> None:
    """Write a file in diffusers' form; prefix: of the names of its tensors."""
    LoraBaseMixin._save_lora_weights(
        save_directory=folder,
        lora_layers={prefix: dict(weights.layers)},
        lora_metadata={prefix: dict(weights.config)},
        is_main_process=True,
        weight_name=name,
        save_function=None,
        safe_serialization=True,
    )
