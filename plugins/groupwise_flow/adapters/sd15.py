"""Stable Diffusion 1 and 2."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from groupwise_flow.adapter import Conditions, Limit, Row
from groupwise_flow.adapters.noise_prediction import NoisePrediction


class SD15Adapter(NoisePrediction):
    """Stable Diffusion 1.x and 2.x: one CLIP, and a U-Net that predicts the noise or v."""

    pipelines = ("StableDiffusionPipeline",)

    def limit(self) -> Limit:
        """CLIP's own limit."""
        clip = self.pipeline.tokenizer
        return Limit(clip, clip.model_max_length, "the text encoder")

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor]:
        """As in the pipeline."""
        embeds, _ = self.pipeline.encode_prompt(
            [row["prompt"] for row in rows],
            self.device,
            num_images_per_prompt=1,
            do_classifier_free_guidance=False,
        )
        return {"embeds": embeds}

    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        predicted = self.model(
            self.model_input(latents, sigma),
            self.timestep(sigma),
            encoder_hidden_states=conditions["embeds"],
            return_dict=False,
        )[0]
        return self.from_prediction(predicted, latents, sigma)

    def call_arguments(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        negative = {"negative_prompt": negative_prompt} if negative_prompt else {}
        return {"guidance_scale": guidance, **negative}
