"""LLaVA-NeXT: the picture as one tile, then tiles of it at the resolution that fits it best.

https://llava-vl.github.io/blog/2024-01-30-llava-next/ ("AnyRes").
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from groupwise_llm.vision.families.tiles import Tiles


class LlavaNext(Tiles):
    """Tokens of padding are left out, and each row of tokens ends with a learned one."""

    names = ("image_sizes",)

    def towers(self, model: Any) -> Sequence[nn.Module]:
        return [*super().towers(model), nn.ParameterList([model.model.image_newline])]
