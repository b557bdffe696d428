"""LLaVA-NeXT: the picture as one tile, then tiles of it at the resolution that fits it best.

https://llava-vl.github.io/blog/2024-01-30-llava-next/ ("AnyRes").
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from groupwise_llm.vision.families.tiles import Tiles

AFTER = ("encoder", "post_layernorm")
"""The parts of the tower that come after the embedding of patches."""


class LlavaNext(Tiles):
    """Tokens of padding are left out, and each row of tokens ends with a learned one."""

    names = ("image_sizes",)

    def towers(self, model: Any) -> Sequence[nn.Module]:
        tower, chosen = model.model.vision_tower, self.config.vision_feature_layer
        states = len(tower.encoder.layers) + 1  # of each layer, and those before the first
        reached = max(n % states for n in ([chosen] if isinstance(chosen, int) else chosen))
        # Features are states of a layer before the last: what follows it would have no gradient.
        first = [part for name, part in tower.named_children() if name not in AFTER]
        newline = nn.ParameterList([model.model.image_newline])
        projector = model.model.multi_modal_projector
        return [*first, *tower.encoder.layers[:reached], projector, newline]
