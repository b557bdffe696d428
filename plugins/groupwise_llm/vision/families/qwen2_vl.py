"""Qwen2-VL and Qwen2.5-VL: pictures of any size, with positions in time, height and width.

arXiv 2409.12191 and 2502.13923.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import nn

from groupwise_llm.vision.family import Family, Features, joined
from groupwise_llm.vision.picture import Picture


class Qwen2VL(Family):
    """One run of image tokens for each picture, a token for each 2 x 2 patches."""

    axes = 3

    def limits(self, min_pixels: int | None, max_pixels: int | None) -> Mapping[str, Any]:
        if min_pixels is None and max_pixels is None:
            return {}
        usual = self.processor.image_processor.size
        return {
            "size": {
                "shortest_edge": min_pixels or usual["shortest_edge"],
                "longest_edge": max_pixels or usual["longest_edge"],
            }
        }

    def picture(self, image: Any, **limits: Any) -> Picture:
        inputs = self.processor.image_processor([image], return_tensors="pt", **limits)
        # M-RoPE: rows and columns of tokens; what follows stands after the larger extent.
        merge = self.processor.image_processor.merge_size
        time, height, width = (
            extent // step
            for extent, step in zip(
                inputs["image_grid_thw"][0].tolist(), (1, merge, merge), strict=True
            )
        )
        grid = torch.meshgrid(*map(torch.arange, (time, height, width)), indexing="ij")
        offsets = torch.stack(grid).flatten(1)
        advances = torch.zeros(offsets.shape[1], dtype=torch.int64)
        advances[-1] = max(height, width)
        return Picture(
            inputs=dict(inputs),
            text=self.processor.replace_image_token(inputs, image_idx=0),
            offsets=offsets,
            advances=advances,
        )

    def reduced(self, picture: Picture) -> Any:
        """The resized image, from its patches, if it has less than half the pixels."""
        processor = self.processor.image_processor
        patch, merge = processor.patch_size, processor.merge_size
        _, height, width = picture.inputs["image_grid_thw"][0].tolist()
        size = (width * patch, height * patch)
        if 2 * size[0] * size[1] >= picture.image.width * picture.image.height:
            return None
        # A frame is repeated in time. Patches that become one token stand together.
        patches = picture.inputs["pixel_values"].unflatten(1, (3, -1, patch, patch))[:, :, 0]
        grid = patches.unflatten(0, (height // merge, width // merge, merge, merge))
        image = grid.permute(0, 2, 5, 1, 3, 6, 4).reshape(size[1], size[0], 3)
        mean, deviation = map(torch.tensor, (processor.image_mean, processor.image_std))
        values = (image * deviation + mean) / processor.rescale_factor
        return Image.fromarray(values.round().clamp(0, 255).to(torch.uint8).numpy())

    def text_model(self, model: Any) -> nn.Module:
        part: nn.Module = model.model.language_model
        return part

    def towers(self, model: Any) -> Sequence[nn.Module]:
        return [model.model.visual]

    def features(self, model: Any, pictures: Sequence[Picture]) -> Features:
        inputs = {name: value.to(model.device) for name, value in joined(pictures).items()}
        return Features(torch.cat(model.get_image_features(**inputs).pooler_output))
