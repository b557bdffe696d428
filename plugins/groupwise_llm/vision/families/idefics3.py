"""Idefics3, SmolVLM and SmolVLM2: a picture is cut into tiles, and each is named in the text.

arXiv 2408.12637 and 2504.05299.
"""

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

from torch import Tensor

from groupwise_llm.vision.families.tiles import Tiles
from groupwise_llm.vision.picture import Picture


class Idefics3(Tiles):
    """Rows and columns of tiles, then the whole picture as one more; a small one is one tile."""

    text_name = "text_model"
    tower_names = ("vision_model", "connector")

    @property
    def tile_pixels(self) -> int:
        side: int = self.processor.image_processor.max_image_size["longest_edge"]
        return side**2

    def most(self, pixels: int) -> Mapping[str, Any]:
        # Both sides are rounded up to whole tiles, so the longest edge is cut to some beforehand.
        side, usual = isqrt(self.tile_pixels), self.processor.image_processor.size["longest_edge"]
        return {"size": {"longest_edge": min(isqrt(pixels) // side * side, usual)}}

    def inputs(self, pictures: Sequence[Picture]) -> Mapping[str, Tensor]:
        # As those of one text, [1, tiles, 3, height, width]. No tile is padded: all are squares of
        # the same size.
        return {name: value.unsqueeze(0) for name, value in super().inputs(pictures).items()}
