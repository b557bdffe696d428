"""Encoder: the common interface of open_clip's and transformers' CLIP models."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from groupwise_clip.images import Framing


class Encoder(ABC):
    """A frozen CLIP that maps images and texts to features of D numbers.

    width: D. scale: exp(logit_scale), the factor of the cosine in the model's own logits.
    framing: how images are resized, cropped and normalised.
    """

    module: Any  # an nn.Module with methods of its own
    width: int
    scale: float
    framing: Framing

    @abstractmethod
    def encode_images(self, pixels: Tensor) -> Tensor:
        """Returns [n, D] for images [n, 3, h, w] preprocessed by `framing`; not normalised."""

    @abstractmethod
    def encode_texts(self, texts: list[str], device: torch.device) -> Tensor:
        """Returns [n, D] for texts, not normalised; texts beyond the context length are cut off."""
