"""A tiny random Qwen-Image pipeline, with a tokenizer trained on its prompt template."""

import json
from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

TEMPLATE = (
    "system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:\nuser\nassistant\n"
)
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tokenizer() -> Qwen2Tokenizer:
    """Byte-level BPE as Qwen's, trained on the template, which then has about 34 tokens."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    learned.train_from_iterator([TEMPLATE] * 4, trainer)
    merges = json.loads(learned.to_str())["model"]["merges"]
    vocab = learned.get_vocab()
    vocab |= {mark: len(vocab) + number for number, mark in enumerate(MARKS)}
    qwen_tokenizer = Qwen2Tokenizer(vocab=vocab, merges=[tuple(pair) for pair in merges])
    qwen_tokenizer.add_special_tokens({"additional_special_tokens": MARKS[1:]})
    return qwen_tokenizer


def text_encoder(tokenizer: Qwen2Tokenizer) -> Any:
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
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


def qwen_image() -> QwenImagePipeline:
    words = tokenizer()
    transformer = QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    vae = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.5, 0.8, 1.0, 2.0],
    )
    return QwenImagePipeline(
        transformer=transformer,
        vae=vae,
        text_encoder=text_encoder(words),
        tokenizer=words,
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, shift_terminal=0.02
        ),
    )
