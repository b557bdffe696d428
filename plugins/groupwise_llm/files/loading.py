"""Loading a causal language model and its tokenizer, with or without adapters."""

import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
import transformers
from transformers.utils import logging

from groupwise.kit import trust
from groupwise.kit.errors import UserError
from groupwise.kit.model_files import MERGE
from groupwise_llm.files.folder import FILE_ARGUMENTS, check_files, location, tokenizer_of
from groupwise_llm.files.quantization import as_plain, keep_layout, quantization_of
from groupwise_llm.files.sharding import Share
from groupwise_llm.model import modes
from groupwise_llm.model.adapters import with_adapters
from groupwise_llm.model.coverage import experts_without_adapters
from groupwise_llm.settings import Settings

UNKNOWN = re.compile(r"__init__\(\) got an unexpected keyword argument '(\w+)'")
EXACT = frozenset({torch.float32, torch.float64})


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """processor: what reads texts for the model, and is saved beside it: its tokenizer, or a
    processor that reads pictures, too.

    overridden: settings of the model's configuration that were switched off; restored for saving.

    writes: whether this process writes a sharded model's files; None where it is not sharded.
    """

    model: Any
    tokenizer: Any
    processor: Any
    overridden: list[modes.Setting] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    writes: bool | None = None


def load(settings: Settings, share: Share | None = None) -> Loaded:
    """The model in eval mode, its trained weights in float32. Raises UserError if loading fails.

    share: of a sharded model; it keeps this process's shards, and the model itself has shapes only.
    """
    # Progress bars of loading would break the run's own progress line.
    logging.disable_progress_bar()
    dtype_of(settings)
    quantised = quantization_of(settings)
    instance = None if settings.instance is None else _checked(settings.instance)
    check_files(settings)
    tokenizer = tokenizer_of(settings)
    model = as_plain(_read(settings, share, quantised)) if instance is None else instance
    keep_layout(model)
    if settings.lora is None and getattr(model, "is_quantized", False):
        raise UserError(
            f"policy.lora: {settings.model} is loaded with quantised weights, which cannot be "
            f"trained; train adapters beside them, lora: {{}}"
        )
    if settings.instance is None:
        model.name_or_path = location(settings)
    # Always eval mode: with dropout, sampling and training log-probs would differ (ratio not 1).
    overridden = modes.disable_rescaling(model.eval())
    notes = freeze_unreached(model, settings)
    if share:
        share.set_aside(model)
    if settings.lora is not None:
        model = with_adapters(model, settings.lora, revision=settings.loading.get("revision"))
        notes += experts_without_adapters(model)
    if share:
        share.placeholders_to_meta(model)
    notes += _hold_in_float32(model, settings)
    return Loaded(
        model=model.eval(),
        tokenizer=tokenizer,
        processor=tokenizer,
        overridden=overridden,
        notes=notes,
        writes=share.first if share else None,
    )


def _read(settings: Settings, share: Share | None, quantised: Mapping[str, Any]) -> Any:
    """The model from its files."""
    usual = {"dtype": torch.float32, trust.SETTING: False, trust.SAFETENSORS: True, **quantised}
    try:
        with share.reading() if share else nullcontext():
            auto = getattr(transformers, settings.auto)
            options = {**usual, **settings.loading, "output_loading_info": True}
            model, report = auto.from_pretrained(settings.model, **options)
    except Exception as error:  # transformers, tokenizers and safetensors raise a dozen kinds
        _refuse_unknown(error)
        hint = "; it may load without train.shard" if share else ""
        raise UserError(
            f"policy.model: cannot load a causal language model from {settings.model!r}: "
            f"{trust.reason_of_policy(error)}{hint}"
        ) from error
    if getattr(model, "peft_config", None):
        raise UserError(f"policy.model: {settings.model!r}: {MERGE}")
    if missing := report["missing_keys"]:  # transformers draws them at random
        raise UserError(
            f"policy.model: {settings.model!r} lacks {len(missing)} weights of "
            f"{type(model).__name__}, {min(missing)!r} for example; expected a model of that class"
        )
    return model


def _checked(model: Any) -> Any:
    """A model that was passed as an object. Raises UserError if it cannot be trained in place."""
    if not isinstance(model, transformers.PreTrainedModel):
        raise UserError(
            f"policy.model: expected a model of transformers, its folder or its hub name, found "
            f"{type(model).__name__}"
        )
    if getattr(model, "peft_config", None):
        raise UserError(
            "policy.model: this model has adapters already, those of an earlier run perhaps; pass "
            "one without (peft's `unload` removes them), and set `lora` to train new ones"
        )
    return model


def outline(settings: Settings, config: Any) -> Any:
    """The model that `load` returns, with shapes and no data. Raises the UserErrors of `load` that
    can be noticed without weights."""
    dtype = dtype_of(settings, config)
    trusted = trust.is_trusted(settings.loading)
    try:
        with torch.device("meta"):
            auto = getattr(transformers, settings.auto)
            model = auto.from_config(config, dtype=dtype, trust_remote_code=trusted)
    except Exception as error:  # as above
        raise UserError(
            f"policy.model: cannot build a causal language model from {settings.model!r}: "
            f"{trust.reason_of_policy(error)}"
        ) from error
    quantization_of(settings)
    _check_arguments(type(model), settings, config)
    with torch.device("meta"):
        freeze_unreached(model, settings)
        if settings.lora is not None:
            model = with_adapters(model, settings.lora)
    _hold_in_float32(model, settings)
    return model


def dtype_of(settings: Settings, config: Any = None) -> torch.dtype:
    """The dtype that weights are loaded in; float32 where the user sets one per submodule."""
    name = "dtype" if "dtype" in settings.loading else "torch_dtype"
    value = dtype = settings.loading.get(name, torch.float32)
    if dtype == "auto":
        dtype = getattr(config, "dtype", None) or torch.float32
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype, None)
    if isinstance(dtype, dict):
        return torch.float32
    if not isinstance(dtype, torch.dtype):
        raise UserError(
            f"policy.loading.{name}: expected a dtype of torch such as bfloat16, or auto, found "
            f"{value!r}"
        )
    return dtype


def _check_arguments(kind: Any, settings: Settings, config: Any) -> None:
    """Raise UserError for arguments of loading that transformers does not know.

    kind: the model's class. from_pretrained runs without weights, on the meta device, with None for
    every argument: only the names are checked.
    """
    own = (
        signature(kind.from_pretrained).parameters.keys()
        | FILE_ARGUMENTS
        | {"dtype", "torch_dtype"}
    )
    names = [n for n in settings.loading if n not in own and not hasattr(config, n)]
    if not names:
        return
    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        options = {**dict.fromkeys(names), "device_map": "meta"}
        kind.from_pretrained(None, config=config, state_dict={}, **options)
    except Exception as error:
        # Any other error may come from the missing weights and values.
        _refuse_unknown(error)
    finally:
        logging.set_verbosity(level)


def _refuse_unknown(error: Exception) -> None:
    name = UNKNOWN.search(str(error)) if isinstance(error, TypeError) else None
    if name:
        raise UserError(
            f"policy.loading.{name[1]}: transformers' from_pretrained has no such argument"
        ) from error


def vocabulary_of(model: Any) -> int:
    """The number of tokens for which a model has an embedding."""
    return int(model.get_input_embeddings().weight.shape[0])


def freeze_unreached(model: Any, settings: Settings) -> list[str]:
    """Freeze the parts of a multimodal model that text does not use (vision tower), but those that
    the settings train; a note lists them.

    They would never get a gradient, and DDP fails at such parameters.
    """
    if model.config.get_text_config(decoder=True) is model.config:
        return []
    parts = [model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings()]
    parts += settings.trained_parts(model)
    reached = {id(p) for part in parts if part is not None for p in part.parameters()}
    frozen: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if id(parameter) not in reached:
            parameter.requires_grad_(False)
            part = ".".join(name.split(".")[:2])
            frozen[part] = frozen.get(part, 0) + parameter.numel()
    if not frozen:
        return []
    count = sum(frozen.values())
    return [f"{', '.join(frozen)}: {count:,} {settings.frozen_note}"]


def _hold_in_float32(model: Any, settings: Settings) -> list[str]:
    """Convert trained weights to float32: bf16 has 8 significant bits, and would round small
    updates away."""
    trained = [p for p in model.parameters() if p.requires_grad and p.dtype not in EXACT]
    if not trained:
        return []
    kind = str(trained[0].dtype).removeprefix("torch.")
    if settings.lora is not None and settings.precision == "float32":
        raise UserError(
            f"policy.precision: weights beside the adapters are trained in float32, and the model "
            f"is in {kind}; set precision: bf16, or load it in float32"
        )
    for parameter in trained:
        parameter.data = parameter.data.float()
    if settings.precision == "bf16":
        return []
    note = f"the model is in {kind}: trained weights are held in float32, and compute in float32"
    return [f"{note}; to compute in bf16 set precision: bf16"]


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a completion, from the generation config, the config and the
    tokenizer. Raises UserError where there is none."""
    ends: set[int] = set()
    for value in (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        tokenizer.eos_token_id,
    ):
        ends.update(value if isinstance(value, list) else [] if value is None else [value])
    if not ends:
        raise UserError("the model states no end token, neither in its configuration nor tokenizer")
    return sorted(ends)
