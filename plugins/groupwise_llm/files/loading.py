"""Loading a causal language model and its tokenizer, full or with adapters."""

import re
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers.utils import logging

from groupwise import trust
from groupwise.errors import UserError, first_line
from groupwise_llm.files.sharding import Share
from groupwise_llm.model import modes
from groupwise_llm.model.adapters import with_adapters
from groupwise_llm.model.copies import DTYPES
from groupwise_llm.settings import Settings

OF_CONFIG = frozenset(
    {
        "cache_dir",
        "code_revision",
        "force_download",
        "gguf_file",
        "local_files_only",
        "proxies",
        "revision",
        "subfolder",
        "token",
        trust.SETTING,
    }
)
"""The arguments of loading that say where files are: a configuration's and a tokenizer's, too."""
UNKNOWN = re.compile(r"__init__\(\) got an unexpected keyword argument '(\w+)'")
PACKS = "support_avx512bf16_for_cpu"
"""By which layers of bitsandbytes know whether they may lay out their weights anew."""
EXACT = frozenset({torch.float32, torch.float64})


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """quieted: what the model's configuration said of dropout before it was switched off.

    writes: whether this process saves the model, None where no other has a part of it.
    """

    model: Any
    tokenizer: Any
    quieted: list[modes.Setting] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    writes: bool | None = None


def load(settings: Settings, share: Share | None = None) -> Loaded:
    """The model in eval mode, what is trained of it in float32. Raises UserError if it cannot be
    had.

    share: keeps this process's part of the weights; the model then has shapes alone for them.
    """
    # Progress bars of loading would tear up the run's own.
    logging.disable_progress_bar()
    dtype_of(settings)
    quantised = quantization_of(settings)
    tokenizer = tokenizer_of(settings)
    try:
        usual = {"dtype": torch.float32, trust.SETTING: False, **quantised}
        usual |= {"use_safetensors": True} if share else {}
        with share.reading() if share else nullcontext():
            model = AutoModelForCausalLM.from_pretrained(
                settings.model, **{**usual, **settings.loading}
            )
    except Exception as error:  # transformers, tokenizers and safetensors raise a dozen kinds
        _refuse_unknown(error)
        hint = "; without train.shard it may load" if share else ""
        raise UserError(
            f"policy.model: cannot load a causal language model from {settings.model!r}: "
            f"{_reason(error)}{hint}"
        ) from error
    model = _as_plain(model)
    _keep_layout(model)
    if settings.lora is None and getattr(model, "is_quantized", False):
        raise UserError(
            f"policy.lora: {settings.model} is loaded with quantised weights, which cannot be "
            f"trained; train adapters beside them, lora: {{}}"
        )
    model.name_or_path = location(settings)
    # Eval mode for good: dropout would part sampling from training (the ratio would not be 1).
    quieted = modes.quieten(model.eval())
    notes = freeze_unreached(model)
    if share:
        share.hollow(model)
    if settings.lora is not None:
        model = with_adapters(model, settings.lora, revision=settings.loading.get("revision"))
    if share:
        share.forget(model)
    notes += _hold_exactly(model, settings)
    return Loaded(
        model=model.eval(),
        tokenizer=tokenizer,
        quieted=quieted,
        notes=notes,
        writes=share.first if share else None,
    )


def outline(settings: Settings, config: Any) -> Any:
    """The model that `load` would make, of shapes alone. Raises UserError for what load refuses, as
    far as that shows without weights."""
    dtype = dtype_of(settings, config)
    trusted = trust.is_trusted(settings.loading)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trusted)
    except Exception as error:  # as many kinds
        raise UserError(
            f"policy.model: cannot build a causal language model from {settings.model!r}: "
            f"{_reason(error)}"
        ) from error
    quantization_of(settings)
    _check_arguments(type(model), settings, config)
    with torch.device("meta"):
        freeze_unreached(model)
        if settings.lora is not None:
            model = with_adapters(model, settings.lora)
    _hold_exactly(model, settings)
    return model


def dtype_of(settings: Settings, config: Any = None) -> torch.dtype:
    """The dtype that weights are loaded in; float32 where it differs by part."""
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


def quantization_of(settings: Settings) -> dict[str, Any]:
    """The argument of loading that `quantize` stands for. Raises UserError where it cannot be."""
    if settings.quantize is None:
        return {}
    if "quantization_config" in settings.loading:
        raise UserError(
            "policy.quantize: policy.loading.quantization_config says how weights are quantised "
            "already; leave out one of them"
        )
    if settings.lora is None:
        raise UserError(
            "policy.quantize: quantised weights cannot be trained; train adapters beside them, "
            "lora: {}"
        )
    if find_spec("bitsandbytes") is None:
        raise UserError(
            "policy.quantize: bitsandbytes is not installed: pip install 'groupwise[quantized]'"
        )
    if settings.quantize == "8bit":
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}
    return {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=DTYPES[settings.precision],
        )
    }


def _check_arguments(kind: Any, settings: Settings, config: Any) -> None:
    """Raise UserError for arguments of loading that transformers does not know.

    kind: the model's class. It is loaded from no weights, of shapes alone, and with no value for
    any argument, as only their names are looked at.
    """
    own = signature(kind.from_pretrained).parameters.keys() | OF_CONFIG | {"dtype", "torch_dtype"}
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
        # Whatever else it says may be of the stand-in.
        _refuse_unknown(error)
    finally:
        logging.set_verbosity(level)


def _refuse_unknown(error: Exception) -> None:
    name = UNKNOWN.search(str(error)) if isinstance(error, TypeError) else None
    if name:
        raise UserError(
            f"policy.loading.{name[1]}: from_pretrained of transformers knows no such argument"
        ) from error


def tokenizer_of(settings: Settings) -> Any:
    try:
        return AutoTokenizer.from_pretrained(settings.model, **_where(settings))
    except Exception as error:  # as many kinds
        raise UserError(
            f"policy.model: cannot load a causal language model from {settings.model!r}: no "
            f"tokenizer: {_reason(error)}"
        ) from error


def _where(settings: Settings) -> dict[str, Any]:
    own = {name: value for name, value in settings.loading.items() if name in OF_CONFIG}
    # Without it transformers asks on the terminal, and waits.
    return {trust.SETTING: False, **own}


def _reason(error: Exception) -> str:
    return trust.UNTRUSTED if trust.brings_code(error) else first_line(error)


def config_of(settings: Settings) -> Any:
    """The model's configuration alone, without its weights."""
    try:
        return AutoConfig.from_pretrained(settings.model, **_where(settings))
    except Exception as error:  # as many kinds
        reason = _reason(error)
        raise UserError(f"policy.model: cannot read {settings.model!r}: {reason}") from error


def positions_of(config: Any) -> int | None:
    """How many tokens the model has positions for, where there is such a limit."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def location(settings: Settings) -> str:
    """Where the model is found from any folder: an absolute path, or a hub name."""
    path = Path(settings.model)
    return str(path.resolve()) if path.exists() else str(settings.model)


def _as_plain(model: Any) -> Any:
    """A model read from GGUF has ordinary weights, but as a quantised one could not be saved."""
    quantization = getattr(model.config, "quantization_config", None)
    method = getattr(quantization, "quant_method", None)
    if method is None or getattr(method, "value", method) != "gguf":
        return model
    config = model.config
    del config.quantization_config
    with torch.device("meta"):
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    for name, buffer in model.named_buffers():
        # Not part of the state dict (rotary frequencies), so still on the meta device.
        owner, _, leaf = name.rpartition(".")
        setattr(plain.get_submodule(owner), leaf, buffer)
    plain.generation_config = model.generation_config
    return plain


def _keep_layout(model: Any) -> None:
    """On some CPUs bitsandbytes lays out weights anew at the first pass in eval mode, for kernels
    that pass no gradient on."""
    for module in model.modules():
        if hasattr(module, PACKS):
            setattr(module, PACKS, False)


def freeze_unreached(model: Any) -> list[str]:
    """Freeze the parts of a model of several modalities that no text reaches; a note says which.

    They would never get a gradient, and training on several processes stops at such parameters.
    """
    if model.config.get_text_config(decoder=True) is model.config:
        return []
    parts = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
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
    return [f"{', '.join(frozen)}: {count:,} weights that no text reaches are not trained"]


def _hold_exactly(model: Any, settings: Settings) -> list[str]:
    """Hold what is trained in float32: bf16 has 8 bits, and small updates would be rounded away."""
    trained = [p for p in model.parameters() if p.requires_grad and p.dtype not in EXACT]
    if not trained:
        return []
    kind = str(trained[0].dtype).removeprefix("torch.")
    if settings.lora is not None and settings.precision == "float32":
        raise UserError(
            f"policy.precision: weights beside the adapters are trained, in float32, and the model "
            f"is loaded in {kind}; set precision: bf16, or leave loading.dtype unset"
        )
    for parameter in trained:
        parameter.data = parameter.data.float()
    if settings.precision == "bf16":
        return []
    note = f"loading.dtype {kind}: what is trained is held in float32 and so computes in float32"
    return [f"{note}; precision: bf16 computes in bf16"]


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a completion: a model may have several, stated in three places."""
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
