"""Qwen3-VL: features of several layers of the tower enter the first layers of the text model.

arXiv 2511.21631; DeepStack, arXiv 2406.04334.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from groupwise_llm.vision.families.qwen2_vl import Qwen2VL
from groupwise_llm.vision.family import Features, Pictured, joined
from groupwise_llm.vision.picture import Picture


class Qwen3VL(Qwen2VL):
    """Qwen2-VL's pictures and positions."""

    def features(self, model: Any, pictures: Sequence[Picture]) -> Features:
        inputs = {name: value.to(model.device) for name, value in joined(pictures).items()}
        output = model.get_image_features(**inputs)
        layers = [torch.cat(layer) for layer in output.deepstack_features]
        return Features(torch.cat(output.pooler_output), torch.stack(layers))

    def arguments(
        self, model: Any, call: Mapping[str, Any], pictured: Pictured
    ) -> Mapping[str, Any]:
        layers, rows = pictured.features.layers, pictured.rows[pictured.places]
        assert layers is not None
        return {
            **call,
            "visual_pos_masks": pictured.places,
            "deepstack_visual_embeds": list(layers[:, rows]),
        }
