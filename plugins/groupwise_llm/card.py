"""Card: what a saved model says of itself, and how it is loaded."""

from collections.abc import Mapping
from typing import Any

from groupwise_llm.files.loading import location
from groupwise_llm.settings import Settings

OF_HERE = frozenset({"cache_dir", "token", "local_files_only", "device_map"})
"""Arguments of loading that are this machine's or this user's own."""

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
    options = {name: v for name, v in settings.loading.items() if name not in OF_HERE}
    arguments = [repr(base), *(f"{name}={value!r}" for name, value in options.items())]
    return {
        "base_model": base,
        "library_name": "transformers" if settings.lora is None else "peft",
        "pipeline_tag": "text-generation",
        "usage": FULL if settings.lora is None else ADAPTERS.replace("BASE", ", ".join(arguments)),
    }
