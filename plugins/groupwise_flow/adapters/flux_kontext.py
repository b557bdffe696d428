"""FLUX.1 Kontext."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from groupwise_flow.adapter import REFERENCES, EditingAdapter, Row
from groupwise_flow.adapters.flux import FluxAdapter


class FluxKontextAdapter(EditingAdapter, FluxAdapter):
    """FLUX.1 Kontext: FLUX.1 that reads one picture, at the places of its own tokens."""

    class Config(EditingAdapter.Config):
        references: int = Field(1, ge=1, le=1, description="pictures that each row has")

    pipelines = ("FluxKontextPipeline",)

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor | None]:
        return {**super().encode(rows), REFERENCES: self.references(rows)}

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        latents = self.pipeline._encode_vae_image(pixels, generator=None)
        packed: Tensor = self.pipeline._pack_latents(latents, *latents.shape)
        return packed

    def _places(self, like: Tensor) -> Tensor:
        """With those of the picture, which begin with 1."""
        own = super()._places(like)
        first = own.new_tensor([1, 0, 0])
        return torch.cat([own, own + first])

    def call_arguments(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        """The call would make pictures as large as the usual ones, and choose other sides."""
        own = super().call_arguments(guidance=guidance, negative_prompt=negative_prompt)
        return {**own, "max_area": self.height * self.width, "_auto_resize": False}
