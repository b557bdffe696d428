"""Quantization: weights of a few bits, as bitsandbytes makes them or a GGUF file has them."""

from importlib.util import find_spec
from typing import Any

import torch
from transformers import BitsAndBytesConfig

from groupwise.kit.errors import UserError
from groupwise_llm.model.copies import DTYPES
from groupwise_llm.settings import Settings

REPACKS = "support_avx512bf16_for_cpu"
"""The attribute of bitsandbytes' layers that allows them to repack their weights."""


def quantization_of(settings: Settings) -> dict[str, Any]:
    """The argument of from_pretrained for `quantize`. Raises UserError where it is not possible."""
    if settings.quantize is None:
        return {}
    if "quantization_config" in settings.loading:
        raise UserError(
            "policy.quantize and policy.loading.quantization_config both set the quantisation; "
            "leave out one of them"
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


def as_plain(model: Any) -> Any:
    """Of a model read from GGUF, a plain copy: its weights are dequantised, but transformers would
    refuse to save it as quantised."""
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


def keep_layout(model: Any) -> None:
    """Keep bitsandbytes from repacking weights: on some CPUs it does so at the first pass in eval
    mode, for kernels without a backward pass."""
    for module in model.modules():
        if hasattr(module, REPACKS):
            setattr(module, REPACKS, False)
