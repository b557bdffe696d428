"""Idefics3, SmolVLM and SmolVLM2: a picture is cut into tiles, and each is named in the text.

arXiv 2408.12637 and 2504.05299.
"""

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

from torch import Tensor

from groupwise.errors import UserError
from groupwise_llm.vision.families.tiles import Tiles
from groupwise_llm.vision.picture import Picture


class Idefics3(Tiles):
    """Rows and columns of tiles, then the whole picture as one more tile; small pictures are one
    tile."""

    text_name = "text_model"
    tower_names = ("vision_model", "connector")

    @property
    def tile_pixels(self) -> int:
        side: int = self.processor.image_processor.max_image_size["longest_edge"]
        return side**2

    def limits(self, min_pixels: int | None, max_pixels: int | None) -> Mapping[str, Any]:
        if min_pixels is not None or max_pixels is None:
            return super().limits(min_pixels, max_pixels)
        if max_pixels < self.tile_pixels:
            raise UserError(
                f"policy.max_pixels: {max_pixels} is less than a tile of this model, which has "
                f"{self.tile_pixels} pixels; raise it to that at least"
            )
        # Both sides are rounded up to whole tiles, the longest edge beforehand.
        side = isqrt(self.tile_pixels)
        longest = min(
            isqrt(max_pixels) // side * side, self.processor.image_processor.size["longest_edge"]
        )
        return {"size": {"longest_edge": longest}}

    def inputs(self, pictures: Sequence[Picture]) -> Mapping[str, Tensor]:
        # As those of one text, [1, tiles, 3, height, width]. No tile is padded: all are squares of
        # the same size.
        return {name: value.unsqueeze(0) for name, value in super().inputs(pictures).items()}
