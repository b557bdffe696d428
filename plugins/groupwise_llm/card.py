"""The model card's facts: base model, library, and the code that loads the saved folder."""

from collections.abc import Mapping
from typing import Any

from groupwise_llm.files.folder import location
from groupwise_llm.settings import Settings

LOCAL_ARGUMENTS = frozenset({"cache_dir", "token", "local_files_only", "device_map"})
"""Arguments of loading that hold for this machine or user only, so the card leaves them out."""

TASKS = {
    "AutoModelForCausalLM": ("text-generation", "tokenizer", "AutoTokenizer"),
    "AutoModelForImageTextToText": ("image-text-to-text", "processor", "AutoProcessor"),
}
"""By transformers' class of the model: the task by the hub's name, and what prepares its inputs."""

FULL = """\
from transformers import MODEL, PREPARING

model = MODEL.from_pretrained("{path}")
NAME = PREPARING.from_pretrained("{path}")
"""
ADAPTERS = """\
from peft import PeftModel
from transformers import MODEL, PREPARING

base = MODEL.from_pretrained(BASE)
model = PeftModel.from_pretrained(base, "{path}")
NAME = PREPARING.from_pretrained("{path}")
"""


def card_of(settings: Settings) -> Mapping[str, Any]:
    """base_model, library_name, pipeline_tag, and usage, where `{path}` stands for the folder."""
    base = location(settings)
    options = {name: v for name, v in settings.loading.items() if name not in LOCAL_ARGUMENTS}
    arguments = [repr(base), *(f"{name}={value!r}" for name, value in options.items())]
    task, name, preparing = TASKS[settings.auto]
    usage = FULL if settings.lora is None else ADAPTERS
    words = {"MODEL": settings.auto, "PREPARING": preparing, "NAME": name}
    for word, own in (words | {"BASE": ", ".join(arguments)}).items():  # last: it may have words
        usage = usage.replace(word, own)
    return {
        "base_model": base,
        "library_name": "transformers" if settings.lora is None else "peft",
        "pipeline_tag": task,
        "usage": usage,
    }
