"""What open_clip's and transformers' models have in common here: two functions and a framing."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from groupwise_clip.images import Framing


class Encoder(ABC):
    """A frozen CLIP: images and texts to features of D numbers.

    width: D. scale: the factor of the cosine in the model's own logits, exp(logit_scale).
    """

    module: Any  # an nn.Module with methods of its own
    width: int
    scale: float
    framing: Framing

    @abstractmethod
    def encode_images(self, pixels: Tensor) -> Tensor:
        """Returns [n, D], of any length, of images [n, 3, h, w] as `framing` says."""

    @abstractmethod
    def encode_texts(self, texts: list[str], device: torch.device) -> Tensor:
        """Returns [n, D], of any length; texts beyond the model's context are cut off."""
