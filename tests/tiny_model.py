"""A language model of one layer with random weights, for tests to which its texts do not matter."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import torch

BASE = Path(__file__).parents[1] / "examples" / "arithmetic" / "base"


@cache
def folder() -> Path:
    """Its folder: the arithmetic example's model with one small layer, and its tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    path = Path(tempfile.mkdtemp(prefix="tiny_model"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    shutil.copytree(BASE, path, dirs_exist_ok=True)
    changes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = AutoConfig.from_pretrained(BASE, **changes, layer_types=["full_attention"])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path
