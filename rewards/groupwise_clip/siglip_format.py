"""The vision towers of SigLIP in transformers' format, for heads on their features."""

from typing import Any

import torch
from torch import Tensor

from groupwise_clip.encoder import Encoder
from groupwise_clip.files import quiet, reason
from groupwise_clip.images import Framing

TYPES = ("siglip", "siglip_vision_model")


class SiglipVision(Encoder):
    """A SiglipVisionModel: images to its pooled features. It has no texts."""

    def __init__(self, name: str, processor: str | None = None) -> None:
        """name: folder or hub name; processor: the same for its image processor."""
        import transformers

        try:
            with quiet():
                model, report = transformers.SiglipVisionModel.from_pretrained(
                    name, dtype=torch.float32, output_loading_info=True, use_safetensors=True
                )
                images = transformers.SiglipImageProcessor.from_pretrained(processor or name)
        except Exception as error:  # transformers, the hub and safetensors raise a dozen kinds
            raise ValueError(
                f"model {name!r} cannot be loaded by transformers: {reason(error, name)}"
            ) from error
        if missing := sorted(report["missing_keys"]):
            raise ValueError(
                f"model {name!r} lacks {len(missing)} of its weights, {missing[0]!r} for example"
            )
        self.module = model.eval()
        self.width = int(model.config.hidden_size)
        self.scale = 1.0
        self.framing = _framing(images)

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Returns [n, D] for images [n, 3, h, w] preprocessed by `framing`; not normalised."""
        features: Tensor = self.module(pixel_values=pixels).pooler_output
        return features

    def encode_texts(self, texts: list[str], device: torch.device) -> Tensor:
        """Raises ValueError: a vision tower reads no texts."""
        raise ValueError("a SigLIP is for `aesthetic` heads on images; texts need a CLIP")


def _framing(processor: Any) -> Framing:
    """The framing equal to this SiglipImageProcessor: both edges are resized, nothing is cut."""
    size = dict(processor.size)
    return Framing(
        size=(size["height"], size["width"]),
        mean=tuple(processor.image_mean),
        std=tuple(processor.image_std),
        resize="squash",
        interpolation="bilinear" if int(processor.resample) == 2 else "bicubic",
    )
