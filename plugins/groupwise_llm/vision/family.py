"""Family: what vision-language models of one architecture have in common, beside all others.

A family is registered under the `model_type` of its configurations. Most are a few lines, since
transformers' processors say what stands for a picture, and its models compute the features.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from groupwise.kit.errors import UserError
from groupwise_llm.vision.picture import Picture


@dataclass(frozen=True)
class Features:
    """What a tower makes of pictures that have n tokens together, in their order.

    embeds: [n, h], in the place of embedded tokens. layers: [L, n, h] added to the states after
    each of the first L layers (DeepStack, arXiv 2406.04334); None where nothing is.
    """

    embeds: Tensor
    layers: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Pictured:
    """Where a pass over ids [n, t] has tokens of pictures.

    ids: with those of pictures. places: [n, t] bool. rows: [n, t] the row of each in `features`,
    arbitrary for text. features: of all pictures of the pass.
    """

    ids: Tensor
    places: Tensor
    rows: Tensor
    features: Features


class Family(ABC):
    """How models of one architecture read pictures.

    processor: transformers' processor, with its tokenizer and image processor.
    config: the whole model's configuration.
    axes: of positions, 3 for M-RoPE (arXiv 2409.12191: time, height, width), which are then
        [3, n, t] in calls of the text model, else [n, t].
    """

    axes: ClassVar[int] = 1

    def __init__(self, processor: Any, config: Any) -> None:
        self.processor, self.config = processor, config

    # ---- text

    @property
    def placeholder(self) -> str:
        """What the chat template writes once for each picture."""
        token: str = self.processor.image_token
        return token

    @property
    def image_id(self) -> int:
        """The id of the image token, of which `Picture.text` has one for each of its tokens."""
        token: int = self.config.image_token_id
        return token

    @property
    def excluded(self) -> frozenset[int]:
        """Ids that stand for pictures or videos, which the model never samples."""
        known = self.processor.tokenizer.get_vocab()
        names = (self.placeholder, getattr(self.processor, "video_token", None))
        return frozenset({self.image_id, *(known[name] for name in names if name in known)})

    # ---- pictures

    def limits(self, min_pixels: int | None, max_pixels: int | None) -> Mapping[str, Any]:
        """Arguments of the image processor that keep pictures within these numbers of pixels.

        Raises UserError where pictures always have the same size.
        """
        if min_pixels is None and max_pixels is None:
            return {}
        name = "max_pixels" if min_pixels is None else "min_pixels"
        raise UserError(
            f"policy.{name}: models of the type {self.config.model_type} choose the size of "
            f"pictures themselves; leave it out"
        )

    @abstractmethod
    def picture(self, image: Any, **limits: Any) -> Picture:
        """A PIL image as the model reads it. limits: those of `limits`."""

    def reduced(self, picture: Picture) -> Any:
        """A smaller image of PIL of which `picture` makes the same, for one that is prepared and
        has its image; None if it is not known, or hardly smaller."""
        return None

    # ---- the model

    @abstractmethod
    def text_model(self, model: Any) -> nn.Module:
        """The part of a transformers model that is called with `inputs_embeds` and returns
        `last_hidden_state`."""

    @abstractmethod
    def towers(self, model: Any) -> Sequence[nn.Module]:
        """The parts that make features of pictures: the vision encoder, and what projects its
        features."""

    @abstractmethod
    def features(self, model: Any, pictures: Sequence[Picture]) -> Features:
        """The features of pictures, one after the other; on the model's device."""

    def arguments(
        self, model: Any, call: Mapping[str, Any], pictured: Pictured
    ) -> Mapping[str, Any]:
        """Arguments of the text model for a pass with pictures.

        call: `inputs_embeds` [n, t, h], `position_ids`, and if set `attention_mask` [n, s],
        `past_key_values`, `use_cache`; families add to them or replace them.
        """
        return call


def joined(pictures: Sequence[Picture]) -> dict[str, Tensor]:
    """The inputs of several pictures, one after the other along their first dimension."""
    names = pictures[0].inputs
    return {name: torch.cat([picture.inputs[name] for picture in pictures]) for name in names}
