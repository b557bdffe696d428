"""The model card's facts: base model, library, and the code that loads the saved folder."""

from collections.abc import Mapping
from typing import Any

from groupwise_llm.files.loading import location
from groupwise_llm.settings import Settings

LOCAL_ARGUMENTS = frozenset({"cache_dir", "token", "local_files_only", "device_map"})
"""Arguments of loading that hold for this machine or user only, so the card leaves them out."""

FULL = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{path}")
tokenizer = AutoTokenizer.from_pretrained("{path}")
"""
ADAPTERS = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained(BASE)
model = PeftModel.from_pretrained(base, "{path}")
tokenizer = AutoTokenizer.from_pretrained("{path}")
"""


def card_of(settings: Settings) -> Mapping[str, Any]:
    """base_model, library_name, pipeline_tag, and usage, where `{path}` stands for the folder."""
    base = location(settings)
    options = {name: v for name, v in settings.loading.items() if name not in LOCAL_ARGUMENTS}
    arguments = [repr(base), *(f"{name}={value!r}" for name, value in options.items())]
    return {
        "base_model": base,
        "library_name": "transformers" if settings.lora is None else "peft",
        "pipeline_tag": "text-generation",
        "usage": FULL if settings.lora is None else ADAPTERS.replace("BASE", ", ".join(arguments)),
    }
