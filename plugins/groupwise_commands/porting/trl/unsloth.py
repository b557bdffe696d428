"""Models of scripts that load them by Unsloth, or wrap them by `get_peft_model`."""

import ast
from collections.abc import Iterable, Mapping
from typing import Any

from groupwise_commands.porting.constants import dotted

MODEL = {
    "model_name": "model_name_or_path",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
}
"""By arguments of `FastLanguageModel.from_pretrained`, names of `trl grpo`."""
UNLESS_SET: Mapping[str, Any] = {"load_in_4bit": True}
LORA_UNLESS_SET: Mapping[str, Any] = {
    "use_peft": True,
    "lora_r": 16,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "lora_target_modules": [
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    ],
}
"""What Unsloth's `get_peft_model` takes unless told; peft's has a `LoraConfig`."""


def loading(calls: Iterable[ast.Call]) -> ast.Call | None:
    """The call that loads a model by Unsloth, if there is one."""
    return next(filter(_is_loading, calls), None)


def wrapping(calls: Iterable[ast.Call]) -> ast.Call | None:
    """The call that gives a model adapters, if there is one."""
    return next((each for each in calls if _name(each) == "get_peft_model"), None)


def is_of_unsloth(call: ast.Call) -> bool:
    """Whether it is a method of `FastLanguageModel`, or of Unsloth's other classes."""
    return any(part.startswith("Fast") for part in dotted(call.func).split("."))


def _is_loading(call: ast.Call) -> bool:
    return _name(call) == "from_pretrained" and is_of_unsloth(call)


def _name(call: ast.Call) -> str:
    return dotted(call.func).rpartition(".")[2]
