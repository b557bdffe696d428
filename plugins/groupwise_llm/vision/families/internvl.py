"""InternVL: a picture is cut into tiles, and a small one of the whole follows.

arXiv 2504.10479.
"""

from collections.abc import Mapping
from typing import Any

from groupwise_llm.vision.families.tiles import Tiles


class InternVL(Tiles):
    """As many tiles, and in such rows and columns, as fit the picture's shape best."""

    def most(self, pixels: int) -> Mapping[str, Any]:
        return {"max_patches": pixels // self.tile_pixels}
