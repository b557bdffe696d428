"""Loading a causal language model and its tokenizer, full or with adapters."""

import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from groupwise.errors import UserError, first_line
from groupwise_llm.settings import Settings


def load(settings: Settings) -> tuple[Any, Any]:
    """(model in float32 and eval mode, tokenizer). Raises UserError where either cannot be had."""
    # Progress bars of loading would tear up the run's own.
    logging.disable_progress_bar()
    try:
        options = dict(settings.loading)
        tokenizer = AutoTokenizer.from_pretrained(settings.model, **options)
        model = AutoModelForCausalLM.from_pretrained(
            settings.model, **{"dtype": torch.float32, **options}
        )
    except Exception as error:  # transformers, tokenizers and safetensors raise a dozen kinds
        reason = first_line(error)
        raise UserError(
            f"policy.model: cannot load a causal language model from {settings.model!r}: {reason}"
        ) from error
    model = _as_plain(model)
    if settings.lora is not None:
        model = with_adapters(model, settings)
    # Eval mode for good: dropout would part sampling from training (the ratio would not be 1).
    return model.eval(), tokenizer


OF_CONFIG = frozenset(
    {
        "cache_dir",
        "gguf_file",
        "local_files_only",
        "revision",
        "subfolder",
        "token",
        "trust_remote_code",
    }
)
"""The arguments of loading that say where a configuration is, and may be read with it."""


def config_of(settings: Settings) -> Any:
    """The model's configuration alone, without its weights."""
    options = {name: value for name, value in settings.loading.items() if name in OF_CONFIG}
    try:
        return AutoConfig.from_pretrained(settings.model, **options)
    except Exception as error:  # as many kinds
        reason = first_line(error)
        raise UserError(f"policy.model: cannot read {settings.model!r}: {reason}") from error


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
    plain.name_or_path = model.name_or_path
    return plain


def with_adapters(model: Any, settings: Settings) -> Any:
    """The model wrapped by peft, its adapters in float32."""
    from peft import LoraConfig, get_peft_model

    lora = settings.lora
    assert lora is not None
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha or 2 * lora.rank,
        target_modules=lora.targets,
        **{"lora_dropout": 0.0, **lora.options},
    )
    try:
        with warnings.catch_warnings():
            # peft asks transformers whether it checkpoints by a name that is about to go.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            # GPT-2's transposed layers, which it then treats as they are.
            warnings.filterwarnings("ignore", "fan_in_fan_out", UserWarning)
            return get_peft_model(model, config, autocast_adapter_dtype=True)
    except ValueError as error:
        raise UserError(f"policy.lora: {error}") from error


def checkpoint_activations(model: Any) -> None:
    """Recompute each layer in the backward pass; newer transformers name the switch otherwise."""
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


def save(model: Any, tokenizer: Any, path: Path) -> None:
    """As transformers saves a model, or peft an adapter, with the tokenizer beside it."""
    path.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # peft asks the hub whether the base model's vocabulary changed, and warns without one.
        warnings.simplefilter("ignore", UserWarning)
        model.save_pretrained(path)
    tokenizer.save_pretrained(path)


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
