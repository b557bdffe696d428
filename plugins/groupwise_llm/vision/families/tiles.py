"""Tiles: what families share that cut pictures into tiles of one size, or resize them to one."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from groupwise.kit.errors import UserError
from groupwise_llm.vision.family import Family, Features, joined
from groupwise_llm.vision.picture import Picture


class Tiles(Family):
    """Each tile has the same number of image tokens, and positions count tokens.

    names: of the image processor's tensors that the model takes beside `pixel_values`, with a row
        for each picture.
    text_name, tower_names: of the parts of the model without its head.
    """

    names: ClassVar[Sequence[str]] = ()
    text_name: ClassVar[str] = "language_model"
    tower_names: ClassVar[Sequence[str]] = ("vision_tower", "multi_modal_projector")

    @property
    def tile_pixels(self) -> int:
        """Pixels of a tile, the size to which pictures are resized where they are one tile."""
        size = self.processor.image_processor.size
        return int(size["height"] * size["width"])

    def most(self, pixels: int) -> Mapping[str, Any] | None:
        """Arguments of the image processor that keep pictures within so many pixels, a tile at
        least; None where it chooses their size itself."""
        return None

    def limits(self, min_pixels: int | None, max_pixels: int | None) -> Mapping[str, Any]:
        most = None if min_pixels is not None or max_pixels is None else self.most(max_pixels)
        if most is None or max_pixels is None:
            return super().limits(min_pixels, max_pixels)
        if max_pixels < self.tile_pixels:
            raise UserError(
                f"policy.max_pixels: {max_pixels} is less than a tile of this model, which has "
                f"{self.tile_pixels} pixels; raise it to that at least"
            )
        return most

    def picture(self, image: Any, **limits: Any) -> Picture:
        # What the processor itself hands on, as its documentation has it.
        options = {**getattr(self.processor, "images_kwargs", {}), **limits}
        inputs = self.processor.image_processor([image], return_tensors="pt", **options)
        text = self.processor.replace_image_token(inputs, image_idx=0)
        token = self.processor.tokenizer.convert_ids_to_tokens(self.image_id)
        count = text.count(token)
        tensors = {name: inputs[name] for name in self.names}
        return Picture(
            # [tiles, 3, height, width]; some processors put pictures, or rows of them, before.
            inputs={"pixel_values": inputs["pixel_values"].flatten(0, -4), **tensors},
            text=text,
            offsets=torch.zeros(1, count, dtype=torch.int64),
            advances=torch.ones(count, dtype=torch.int64),
        )

    def text_model(self, model: Any) -> nn.Module:
        part: nn.Module = getattr(model.model, self.text_name)
        return part

    def towers(self, model: Any) -> Sequence[nn.Module]:
        return [getattr(model.model, name) for name in self.tower_names]

    def inputs(self, pictures: Sequence[Picture]) -> Mapping[str, Tensor]:
        """Arguments of the model's `get_image_features`."""
        return joined(pictures)

    def features(self, model: Any, pictures: Sequence[Picture]) -> Features:
        inputs = {name: value.to(model.device) for name, value in self.inputs(pictures).items()}
        # A tensor [tiles, tokens, h], or [tokens, h] for each picture.
        return Features(torch.cat([*model.get_image_features(**inputs).pooler_output]))
