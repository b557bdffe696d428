"""Tiny vision-language models of real architectures: random weights, real processors, no network.

Two layers of width 32 and a token per byte.
"""

import atexit
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from tests.llm.vision.configurations import STAND_INS, StandIn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def make_tokenizer(stand_in: StandIn) -> PreTrainedTokenizerFast:
    """A token per byte, then the special ones."""
    special = [*dict.fromkeys([*stand_in.tokens.values(), *stand_in.more_tokens])]
    tokenizer = Tokenizer(models.BPE(vocab={byte: n for n, byte in enumerate(BYTES)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    if stand_in.begin:
        begin = stand_in.tokens["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **stand_in.tokens)


def make_processor(stand_in: StandIn) -> transformers.ProcessorMixin:
    parts = {
        "image_processor": getattr(transformers, stand_in.images)(**stand_in.image_options),
        "tokenizer": make_tokenizer(stand_in),
    }
    if stand_in.videos:
        parts["video_processor"] = getattr(transformers, stand_in.videos)()
    make = getattr(transformers, stand_in.processor)
    options = stand_in.processor_options or {}
    return make(**parts, chat_template=stand_in.template, **options)


def make_model(
    model_type: str, tokenizer: PreTrainedTokenizerFast, **changes: Any
) -> transformers.PreTrainedModel:
    """Random weights by seed 7, none of zero: it would hide code that forgets it.

    changes: of the text model's configuration.
    """
    stand_in = STAND_INS[model_type]
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in stand_in.ids.items()}
    text = {
        **stand_in.text,
        **changes,
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = AutoConfig.for_model(
        model_type, text_config=text, vision_config=stand_in.vision, **ids, **stand_in.whole
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = AutoModelForImageTextToText.from_config(config)
        for parameter in model.parameters():
            if not parameter.any():  # biases, Gemma's projection of features
                torch.nn.init.normal_(parameter, std=0.1)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval()


def save(model_type: str, folder: Path, **changes: Any) -> None:
    """A folder that `AutoProcessor` and `AutoModelForImageTextToText` read."""
    processor = make_processor(STAND_INS[model_type])
    processor.save_pretrained(folder)
    make_model(model_type, processor.tokenizer, **changes).save_pretrained(folder)


@cache
def folder(model_type: str) -> Path:
    """The saved stand-in, one per process."""
    path = Path(tempfile.mkdtemp(prefix=model_type))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    save(model_type, path)
    return path


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture of random blocks, 4 pixels wide, so that it survives being resized."""
    blocks = random.Random(f"{seed} {width} {height}").randbytes(3 * (width // 4) * (height // 4))
    small = Image.frombytes("RGB", (width // 4, height // 4), blocks)
    return small.resize((width, height), Image.Resampling.NEAREST)
