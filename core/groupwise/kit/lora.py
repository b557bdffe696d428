"""LoRA by peft: the settings that policies share, and a check that a model has what they name."""

import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import nn

from groupwise.kit.errors import UserError, did_you_mean

UNUSED = r"(?s).*(_pattern keys did not match|no modules were excluded|no \w+ was matched)"
"""peft's warnings about names that applied to no layer."""


class Lora(BaseModel):
    """LoRA adapters by peft; `options` takes any further argument of `peft.LoraConfig`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(16, ge=1, description="rank of the adapters")
    alpha: float | None = Field(
        None, gt=0, description="adapters are scaled by alpha / rank; twice the rank if unset"
    )
    targets: str | list[str] | None = Field(None, description="modules that get adapters")
    options: dict[str, Any] = Field(
        default_factory=dict, description="further peft arguments, all but lora_dropout"
    )

    @field_validator("options")
    @classmethod
    def _without_dropout(cls, options: dict[str, Any]) -> dict[str, Any]:
        if options.get("lora_dropout") not in (None, 0):
            raise ValueError(
                "lora_dropout is never applied: with dropout, the log-probs of sampling and of "
                "training would differ, and ratios would not be 1; leave it out"
            )
        return options


@contextmanager
def adding(
    models: Sequence[nn.Module], lora: Lora, targets: Collection[str] = ()
) -> Iterator[None]:
    """The context in which the models get their adapters; after it each name in the settings must
    have applied to a layer of one of them.

    targets: of peft's configuration, as the settings name them. Raises UserError for a name that
    applied to none, which peft ignores with a warning at most.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", UNUSED)
        yield
    _check_names(models, lora.options, targets)


def _check_names(
    models: Sequence[nn.Module], options: dict[str, Any], targets: Collection[str]
) -> None:
    adapted = [name for model in models for name in _adapted(model)]
    layers = [name for model in models for name in _layers(model)]
    parameters, excluded = options.get("target_parameters"), options.get("exclude_modules")
    for key, names, known in (
        ("targets", targets, adapted),
        ("options: target_parameters", parameters or (), adapted),
        ("options: exclude_modules", [] if isinstance(excluded, str) else excluded or (), layers),
    ):
        for name in names:
            if not any(f".{each}".endswith(f".{name}") for each in known):
                _refuse(key, name, layers)
    if isinstance(excluded, str) and not any(re.fullmatch(excluded, each) for each in layers):
        _refuse("options: exclude_modules", excluded, layers)
    _check_patterns(options, adapted)


def _check_patterns(options: dict[str, Any], adapted: Sequence[str]) -> None:
    """Raise UserError for a pattern, or a number of a layer, that applies to no adapter."""
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists
    from peft.utils.other import get_pattern_key

    for key in ("rank_pattern", "alpha_pattern"):
        for pattern in options.get(key) or {}:
            if not any(get_pattern_key([pattern], name) == pattern for name in adapted):
                _refuse(f"options: {key}", pattern, adapted)
    numbers, ends = options.get("layers_to_transform"), {_end(name) for name in adapted}
    for number in numbers if isinstance(numbers, list) else ():
        alone = LoraConfig(
            target_modules=ends,
            layers_to_transform=[number],
            layers_pattern=options.get("layers_pattern"),
        )
        if not any(check_target_module_exists(alone, name) for name in adapted):
            _refuse("options: layers_to_transform", number, adapted)


def _refuse(key: str, name: object, known: Collection[str]) -> None:
    ends = sorted({_end(each) for each in known})
    raise UserError(
        f"policy.lora.{key}: {name!r} applies to no layer{did_you_mean(str(name), ends)} (expected "
        f"is the end of a layer's name, such as {', '.join(ends[:8])})"
    )


def _adapted(model: nn.Module) -> Iterator[str]:
    """Names of the layers with adapters; of stacked weights with adapters, those of the weights."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            layer = name.replace(".base_layer", "")
            parameter = getattr(module, "parameter_name", None)
            yield f"{layer}.{parameter}" if parameter else layer


def _layers(model: nn.Module) -> Iterator[str]:
    """Names of the model's own layers: the modules that hold weights themselves."""
    for name, module in model.named_modules():
        holds = next(module.parameters(recurse=False), next(module.buffers(recurse=False), None))
        if holds is not None and "lora_" not in name:
            yield name.replace(".base_layer", "")


def _end(name: str) -> str:
    return name.rpartition(".")[2]
