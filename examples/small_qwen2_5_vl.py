"""A Qwen2.5-VL of toy size for pictures of 32 pixels: processor, random weights and supervision.

`count_shapes/make_base.py` and `draw_look/make_base.py` train it.
"""

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

SIDE, PATCH, MERGE = 32, 8, 2
"""A picture of SIDE x SIDE pixels has (SIDE / PATCH / MERGE)^2 = 4 tokens."""
END = "<|im_end|>"
SPECIAL = ["<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
CHAT_TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n"
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- else -%}{{ part.text }}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "<|im_end|>\n{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)


def make_processor(words: Sequence[str], tags: Sequence[str] = ()) -> Qwen2_5_VLProcessor:
    """A processor whose tokenizer has one token for each of these words, with a space before it or
    without, and for each of the tags and `<think>`, `</think>`."""
    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [f"{word} {word}" for word in ("user", "assistant", *words)] * 2,
        trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False),
    )
    model = json.loads(bpe.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],
        unk_token=None,
        eos_token=END,
        pad_token=END,
        extra_special_tokens=SPECIAL,
    )
    tokenizer.add_tokens(["<think>", "</think>", *tags])
    sizes = {"patch_size": PATCH, "merge_size": MERGE}
    sizes |= {"size": {"shortest_edge": SIDE**2, "longest_edge": SIDE**2}}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**sizes),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(**sizes),
        chat_template=CHAT_TEMPLATE,
    )


def make_model(
    processor: Qwen2_5_VLProcessor,
    *,
    width: int = 64,
    layers: int = 4,
    depth: int = 2,
    spread: float = 0.1,
) -> Qwen2_5_VLForConditionalGeneration:
    """A model with random weights. width: of the hidden states of both towers; layers: of the
    language model; depth: blocks of the vision tower."""
    tokenizer, heads = processor.tokenizer, 4
    half = width // heads // 2
    sections = [half - 2 * (3 * half // 8), 3 * half // 8, 3 * half // 8]
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in NAMES}
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": width,
            "intermediate_size": 3 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "max_position_embeddings": 256,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": sections,
            },
            "initializer_range": spread,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": depth,
            "initializer_range": spread,
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_heads": heads,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "window_size": SIDE,
            "out_hidden_size": width,
            "fullatt_block_indexes": list(range(depth)),
        },
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        tie_word_embeddings=True,
    )
    config.initializer_range = spread
    return Qwen2_5_VLForConditionalGeneration(config)


@torch.no_grad()
def inherit(
    model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor, folder: Path
) -> None:
    """Take over all weights of a model of the same sizes; of its words those that are known here,
    too."""
    old = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder)
    former = Qwen2_5_VLProcessor.from_pretrained(folder).tokenizer.get_vocab()
    known = {
        id_: former[word] for word, id_ in processor.tokenizer.get_vocab().items() if word in former
    }
    own, weights = model.get_input_embeddings().weight, old.get_input_embeddings().weight
    own[[*known]] = weights[[*known.values()]]
    rest = {name: own for name, own in old.state_dict().items() if own.shape != weights.shape}
    model.load_state_dict(rest, strict=False)


NAMES = ("image_pad", "video_pad", "vision_start", "vision_end")


def pixels_of(processor: Qwen2_5_VLProcessor, pictures: Sequence[Image]) -> Tensor:
    """Prepared pictures: [n, patches, numbers of a patch]."""
    values = processor.image_processor(list(pictures), return_tensors="pt")["pixel_values"]
    return values.view(len(pictures), (SIDE // PATCH) ** 2, -1)


def train(
    model: Qwen2_5_VLForConditionalGeneration,
    processor: Qwen2_5_VLProcessor,
    pixels: Tensor,
    pair: Callable[[int, float], tuple[str, str]],
    chance: random.Random,
    *,
    steps: int,
    size: int = 32,
    rate: float = 3e-3,
) -> None:
    """Supervised training of the whole model.

    pixels: [rows, pictures, patches, numbers], those of each row, as `pixels_of` returns them.
    pair: a prompt and an answer for this row, after this share of the steps. size: rows in a batch.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    started = time.monotonic()
    for step in range(steps):
        done = step / steps
        for group in optimizer.param_groups:
            group["lr"] = (
                rate * min(1.0, step / min(100, steps / 5)) * 0.5 * (1 + math.cos(math.pi * done))
            )
        rows = chance.sample(range(len(pixels)), size)
        pairs = [pair(row, done) for row in rows]
        loss = model(**batch(processor, pixels[rows], pairs)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            spent = time.monotonic() - started
            print(f"step {step:6d}  loss {loss.item():.4f}  {spent:.0f} s", flush=True)


def batch(
    processor: Qwen2_5_VLProcessor, pixels: Tensor, pairs: Sequence[tuple[str, str]]
) -> dict[str, Tensor]:
    """Right-padded ids of pictures, a prompt and an answer each, with labels for the answers.

    pixels: [rows, pictures, patches, numbers of a patch].
    """
    tokenizer, side = processor.tokenizer, SIDE // PATCH
    image = processor.image_token * (side // MERGE) ** 2
    shown = pixels.shape[1]
    prompts = [
        rendered(processor, prompt, shown).replace(processor.image_token, image)
        for prompt, _ in pairs
    ]
    before = tokenizer(prompts)["input_ids"]
    after = tokenizer([answer + END for _, answer in pairs])["input_ids"]
    rows = [torch.tensor([*one, *two]) for one, two in zip(before, after, strict=True)]
    labels = [
        torch.tensor([*[-100] * len(one), *two]) for one, two in zip(before, after, strict=True)
    ]
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    return {
        "input_ids": ids,
        "attention_mask": pad([torch.ones_like(row) for row in rows], batch_first=True),
        "mm_token_type_ids": (ids == processor.image_token_id).long(),
        "labels": pad(labels, batch_first=True, padding_value=-100),
        "pixel_values": pixels.flatten(0, 2),
        "image_grid_thw": torch.tensor([[1, side, side]] * len(rows) * shown),
    }


def rendered(processor: Qwen2_5_VLProcessor, prompt: str, pictures: int) -> str:
    """The chat of so many pictures and a prompt, up to where the answer begins."""
    content = [*[{"type": "image"}] * pictures, {"type": "text", "text": prompt}]
    message: dict[str, Any] = {"role": "user", "content": content}
    return processor.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
