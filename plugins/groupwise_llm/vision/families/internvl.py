"""InternVL: a picture is cut into tiles, and a small one of the whole follows.

arXiv 2504.10479.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

from groupwise.errors import UserError
from groupwise_llm.vision.families.tiles import Tiles


class InternVL(Tiles):
    """As many tiles, and in such rows and columns, as fit the picture's shape best."""

    @property
    def excluded(self) -> frozenset[int]:
        videos = self.processor.tokenizer.convert_tokens_to_ids(self.processor.video_token)
        return super().excluded | {videos}

    def limits(self, min_pixels: int | None, max_pixels: int | None) -> Mapping[str, Any]:
        counts: dict[str, int] = {}
        if min_pixels is not None:
            counts["min_patches"] = ceil(min_pixels / self.tile_pixels)
        if max_pixels is not None:
            counts["max_patches"] = max_pixels // self.tile_pixels
        if max_pixels is not None and max_pixels < self.tile_pixels:
            raise UserError(
                f"policy.max_pixels: {max_pixels} is less than a tile of this model, which has "
                f"{self.tile_pixels} pixels; raise it to that at least"
            )
        return counts
