"""Stable Diffusion XL."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from groupwise_flow.adapter import UNCONDITIONAL, Conditions, Limit, Row
from groupwise_flow.adapters.noise_prediction import NoisePrediction


class SDXLAdapter(NoisePrediction):
    """Stable Diffusion XL: two CLIPs, and a U-Net that is told the sizes of pictures.

    Without a negative prompt the unconditional pass has embeddings of zeros, as in the pipeline.
    """

    class Config(NoisePrediction.Config):
        clip_skip: int | None = Field(
            None, ge=1, description="more layers of CLIP that are left out, at its end"
        )
        original_size: tuple[int, int] | None = Field(
            None,
            description="height and width the model is told that pictures had; theirs if unset",
        )
        crop: tuple[int, int] = Field(
            (0, 0), description="pixels the model is told were cut off at the top and at the left"
        )

    pipelines = ("StableDiffusionXLPipeline",)
    encodes_size = True

    def limit(self) -> Limit:
        """CLIP's own limit."""
        clip = self.pipeline.tokenizer
        return Limit(clip, clip.model_max_length, "the text encoders")

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor]:
        """As in the pipeline, which skips layers for the prompt alone."""
        unconditional = any(UNCONDITIONAL in row for row in rows)
        embeds, _, pooled, _ = self.pipeline.encode_prompt(
            [row["prompt"] for row in rows],
            device=self.device,
            do_classifier_free_guidance=False,
            clip_skip=None if unconditional else self.options.clip_skip,
        )
        if unconditional and self.pipeline.config.force_zeros_for_empty_prompt:
            empty = [not row["prompt"] for row in rows]
            embeds[empty], pooled[empty] = 0.0, 0.0
        sizes = [*self._original, *self.options.crop, self.height, self.width]
        times = torch.tensor([sizes] * len(rows), device=self.device, dtype=embeds.dtype)
        return {"embeds": embeds, "pooled": pooled, "sizes": times}

    @property
    def _original(self) -> tuple[int, int]:
        return self.options.original_size or (self.height, self.width)

    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        predicted = self.model(
            self.model_input(latents, sigma),
            self.timestep(sigma),
            encoder_hidden_states=conditions["embeds"],
            added_cond_kwargs={
                "text_embeds": conditions["pooled"],
                "time_ids": conditions["sizes"],
            },
            return_dict=False,
        )[0]
        return self.from_prediction(predicted, latents, sigma)

    def call_arguments(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        own: dict[str, Any] = {"guidance_scale": guidance, "original_size": self._original}
        own["crops_coords_top_left"] = self.options.crop
        if self.options.clip_skip is not None:
            own["clip_skip"] = self.options.clip_skip
        return own | ({"negative_prompt": negative_prompt} if negative_prompt else {})
