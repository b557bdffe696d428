"""A tiny untrained zero-shot detector of a real architecture."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import (
    CLIPTokenizer,
    OwlViTConfig,
    OwlViTForObjectDetection,
    OwlViTImageProcessor,
    OwlViTProcessor,
)


def save(folder: Path) -> None:
    """Saves an OWL-ViT of 2 x 2 patches, which predicts its default boxes."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    # A query whose first token is 0 counts as padding.
    tokens = [
        "!",
        "<|startoftext|>",
        "<|endoftext|>",
        *letters,
        *(f"{each}</w>" for each in letters),
    ]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    words = CLIPTokenizer(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), model_max_length=16
    )
    small = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    torch.manual_seed(0)
    model = OwlViTForObjectDetection(
        OwlViTConfig(
            text_config={**small, **ids, "vocab_size": len(tokens), "max_position_embeddings": 16},
            vision_config={**small, "image_size": 32, "patch_size": 16},
            projection_dim=16,
        )
    )
    for parameter in model.box_head.parameters():
        torch.nn.init.zeros_(parameter)
    model.save_pretrained(folder)
    side = {"height": 32, "width": 32}
    OwlViTProcessor(OwlViTImageProcessor(size=side, crop_size=side), words).save_pretrained(folder)
