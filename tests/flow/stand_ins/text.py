"""Tokenizers made in place, and tiny random text encoders of transformers' own classes."""

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Gemma2Config,
    Gemma2Model,
    GemmaTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen3Config,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
    UMT5Config,
    UMT5EncoderModel,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
SMALL_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""A chat template with the turns of Qwen3's."""


def bpe(texts: Sequence[str], splitting: Any, size: int, **options: Any) -> dict[str, Any]:
    """Vocabulary and merges of a BPE that is trained on these texts."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = splitting
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, **options)
    learned.train_from_iterator(texts, trainer)
    model = json.loads(learned.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(pair) for pair in model["merges"]]}


def qwen_tokenizer(texts: Sequence[str] = (), *, size: int = 500) -> Qwen2Tokenizer:
    """Byte-level BPE as Qwen's; every character is a token, but for what is learned from texts.

    size: most tokens of the vocabulary.
    """
    splitting = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learned = bpe([*texts] * 4, splitting, size, initial_alphabet=alphabet)
    for mark in MARKS:
        learned["vocab"][mark] = len(learned["vocab"])
    tokenizer = Qwen2Tokenizer(**learned)
    tokenizer.add_special_tokens({"additional_special_tokens": [*MARKS[1:]]})
    tokenizer.chat_template = CHAT
    return tokenizer


def gemma_tokenizer(texts: Sequence[str] = ()) -> GemmaTokenizer:
    """BPE as Gemma's, with a token for most words of the texts."""
    alphabet = [chr(code) for code in range(32, 127)]
    learned = bpe(
        [text.replace(" ", "▁") for text in texts] * 4,
        pre_tokenizers.Split("▁", "merged_with_previous"),
        600,
        initial_alphabet=[*alphabet, "\n", "▁"],
        special_tokens=["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"],
    )
    return GemmaTokenizer(**learned)


def t5_tokenizer() -> T5Tokenizer:
    """A unigram model, in which every letter is a token."""
    letters = [chr(code) for code in range(33, 127)]
    names = ["<pad>", "</s>", "<unk>", "\u2581", *letters]
    return T5Tokenizer(vocab=[(name, -float(n)) for n, name in enumerate(names)], extra_ids=0)


def umt5(tokenizer: T5Tokenizer) -> UMT5EncoderModel:
    return UMT5EncoderModel(UMT5Config(vocab_size=len(tokenizer), **SMALL_T5))


def t5(tokenizer: PreTrainedTokenizerBase) -> T5EncoderModel:
    return T5EncoderModel(T5Config(vocab_size=len(tokenizer), **SMALL_T5))


def qwen3(
    kind: type[PreTrainedModel], tokenizer: Qwen2Tokenizer, *, width: int = 16, layers: int = 3
) -> Any:
    """A Qwen3 of this class."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return kind(config)


def gemma2(tokenizer: GemmaTokenizer, *, width: int = 16, layers: int = 3) -> Gemma2Model:
    config = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return Gemma2Model(config)


def qwen2_5_vl(tokenizer: Qwen2Tokenizer, *, layers: int = 2) -> Any:
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": layers,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "bos_token_id": tokenizer.eos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [1, 1, 2],
            },
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 16,
        },
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def clip_tokenizer(length: int = 16) -> CLIPTokenizer:
    names = [*LETTERS, *(f"{c}</w>" for c in LETTERS), "<|startoftext|>", "<|endoftext|>"]
    vocab = {name: number for number, name in enumerate(names)}
    return CLIPTokenizer(vocab=vocab, merges=[], model_max_length=length)


def text_encoder(tokenizer: CLIPTokenizer, *, projection: bool) -> Any:
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=tokenizer.model_max_length,
        projection_dim=8,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return (CLIPTextModelWithProjection if projection else CLIPTextModel)(config)
