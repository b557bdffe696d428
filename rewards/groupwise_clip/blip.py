"""BLIP as its authors' files hold it, with the head of ImageReward: transformers' own modules.

The package `image-reward` pins transformers of 2022. Its file of weights has the names of BLIP's
code (github.com/salesforce/BLIP: `models/vit.py`, `models/med.py`); transformers has the same
modules under other names. All sizes follow from the weights' shapes.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from groupwise_clip.aesthetic import head

PIXELS, WORDS, SCORE = "blip.visual_encoder.", "blip.text_encoder.", "mlp."
"""What the names of the three parts begin with."""
WIDTH_OF_A_HEAD = 64
"""Of BLIP's attention, in its ViT-B, ViT-L and BERT alike."""
RENAMED = (
    (r"^blocks\.(\d+)\.", r"encoder.layers.\1."),
    (r"\.attn\.qkv\.", ".self_attn.qkv."),
    (r"\.attn\.proj\.", ".self_attn.projection."),
    (r"\.norm(\d)\.", r".layer_norm\1."),
    (r"^norm\.", "post_layernorm."),
    (r"^cls_token$", "embeddings.class_embedding"),
    (r"^pos_embed$", "embeddings.position_embedding"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
)
"""Of the vision transformer: patterns of its names, and what transformers calls them."""
UNUSED = ("embeddings.position_ids",)
"""Buffers in files of older transformers."""


class Blip(nn.Module):
    """Images and the texts that are read with them to one number each."""

    def __init__(self, tensors: Mapping[str, Tensor], path: str) -> None:
        """tensors: of the file at `path`. Raises ValueError if they are not ImageReward's."""
        super().__init__()
        from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

        pixels, words = _part(tensors, PIXELS, path), _part(tensors, WORDS, path)
        score = _part(tensors, SCORE, path)
        try:
            vision, text = _vision(pixels), _text(words)
            self.vision = BlipVisionModel(BlipVisionConfig(**vision))
            self.text = BlipTextModel(
                BlipTextConfig(**text, encoder_hidden_size=vision["hidden_size"]),
                add_pooling_layer=False,
            )
            self.vision.load_state_dict({_renamed(name): each for name, each in pixels.items()})
            self.text.load_state_dict(
                {name: each for name, each in words.items() if name not in UNUSED}
            )
        except (KeyError, RuntimeError) as error:
            raise ValueError(
                f"{path!r} does not hold the weights of ImageReward: "
                f"{' '.join(str(error).split())[:200]}"
            ) from error
        self.head = head(score, path)
        self.edge: int = vision["image_size"]
        self.eval().requires_grad_(requires_grad=False)

    def forward(self, pixels: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """[n] float32 of images [n, 3, h, w] and texts [n, t]: of what the text's first token says
        after it has attended to the image in each layer."""
        seen = self.vision(pixel_values=pixels).last_hidden_state
        read = self.text(
            input_ids=ids,
            attention_mask=mask,
            encoder_hidden_states=seen,
            encoder_attention_mask=torch.ones(seen.shape[:2], device=seen.device),
            is_decoder=False,  # the text is read in both directions
        ).last_hidden_state
        values: Tensor = self.head(read[:, 0].float()).squeeze(1)
        return values


def _part(tensors: Mapping[str, Tensor], prefix: str, path: str) -> dict[str, Tensor]:
    part = {
        name.removeprefix(prefix): each.float()
        for name, each in tensors.items()
        if name.startswith(prefix)
    }
    if not part:
        raise ValueError(
            f"{path!r} does not hold the weights of ImageReward: no {prefix}*, found "
            f"{', '.join(sorted(tensors)[:3])}"
        )
    return part


def _renamed(name: str) -> str:
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def _vision(pixels: Mapping[str, Tensor]) -> dict[str, Any]:
    width = pixels["cls_token"].shape[-1]
    patch = pixels["patch_embed.proj.weight"].shape[-1]
    side = round((pixels["pos_embed"].shape[1] - 1) ** 0.5)
    return {
        "hidden_size": width,
        "intermediate_size": pixels["blocks.0.mlp.fc1.weight"].shape[0],
        "num_hidden_layers": _count(pixels, r"blocks\.(\d+)\."),
        "num_attention_heads": width // WIDTH_OF_A_HEAD,
        "image_size": side * patch,
        "patch_size": patch,
        "layer_norm_eps": 1e-6,
        "hidden_act": "gelu",
    }


def _text(words: Mapping[str, Tensor]) -> dict[str, Any]:
    entries, width = words["embeddings.word_embeddings.weight"].shape
    return {
        "vocab_size": entries,
        "hidden_size": width,
        "intermediate_size": words["encoder.layer.0.intermediate.dense.weight"].shape[0],
        "num_hidden_layers": _count(words, r"encoder\.layer\.(\d+)\."),
        "num_attention_heads": width // WIDTH_OF_A_HEAD,
        "max_position_embeddings": words["embeddings.position_embeddings.weight"].shape[0],
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "is_decoder": True,  # only then transformers builds the attention to images
        "use_cache": False,
    }


def _count(tensors: Mapping[str, Tensor], pattern: str) -> int:
    numbers = [int(match[1]) for name in tensors if (match := re.match(pattern, name))]
    return max(numbers) + 1
