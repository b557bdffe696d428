"""InternVL: a picture is cut into tiles, and a small one of the whole follows.

arXiv 2504.10479.
"""

from collections.abc import Mapping
from typing import Any

from groupwise_llm.vision.families.tiles import Tiles


class InternVL(Tiles):
    """As many tiles, and in such rows and columns, as fit the picture's shape best."""

    @property
    def excluded(self) -> frozenset[int]:
        videos = self.processor.tokenizer.convert_tokens_to_ids(self.processor.video_token)
        return super().excluded | {videos}

    def most(self, pixels: int) -> Mapping[str, Any]:
        return {"max_patches": pixels // self.tile_pixels}
