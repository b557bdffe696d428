"""FLUX.2: dev, which takes guidance as an input, and klein."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu
from PIL import Image
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pixel_shuffle

from groupwise_flow.adapter import REFERENCES, Conditions, EditingAdapter, Limit, Row, beside
from groupwise_flow.adapters.sd3 import ATTENTION

APART = 10
"""The distance of pictures on the first axis of places, as in the pipeline."""
MOST_PIXELS = 1024 * 1024
"""Of a picture that the pipeline reads."""


class Flux2Adapter(EditingAdapter):
    """FLUX.2 dev: guidance as an input; reads pictures where `references` says so.

    Latents are [channels, rows, columns] of tokens, as the pipeline's call takes them, normalised
    by the autoencoder's statistics.
    """

    class Config(EditingAdapter.Config):
        references: int = Field(0, ge=0, description="pictures that each row has")

    pipelines = ("Flux2Pipeline",)
    targets = (*ATTENTION, "attn.to_qkv_mlp_proj")
    distilled_guidance = True
    most_prompt_tokens = 512
    patch = 2

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.pipeline.transformer.config.in_channels, self.token_rows, self.token_columns)

    def limit(self) -> Limit:
        """`prompt_tokens`, the chat template's included."""
        words = self.pipeline.tokenizer
        return Limit(getattr(words, "tokenizer", words), self.prompt_tokens, template=self._chat)

    def _chat(self, prompt: str) -> str:
        messages = (("system", self.pipeline.system_message), ("user", prompt))
        turns = [
            {"role": who, "content": [{"type": "text", "text": text}]} for who, text in messages
        ]
        text: str = self.pipeline.tokenizer.apply_chat_template(turns, tokenize=False)
        return text

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor | None]:
        """Three layers of a language model side by side, padding included: the model sees it."""
        embeds, _ = self.pipeline.encode_prompt(
            [row["prompt"] for row in rows],
            device=self.device,
            max_sequence_length=self.prompt_tokens,
        )
        return {"embeds": embeds, REFERENCES: self.references(rows)}

    @property
    def reference_size(self) -> tuple[int, int]:
        """That of the results, or smaller: the pipeline limits the pixels of a picture."""
        shrink = min(1.0, math.sqrt(MOST_PIXELS / (self.height * self.width)))
        side = self.token_side
        height, width = (int(n * shrink) // side * side for n in (self.height, self.width))
        return height, width

    def preprocess(self, picture: Image.Image) -> Tensor:
        """As in the pipeline, which cuts out the middle of what it made smaller."""
        processor, (height, width) = self.pipeline.image_processor, self.reference_size
        if self.height * self.width > MOST_PIXELS:
            picture = processor._resize_to_target_area(picture, MOST_PIXELS)
        pixels: Tensor = processor.preprocess(picture, height, width, resize_mode="crop")
        return pixels

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        latents: Tensor = self.pipeline._encode_vae_image(pixels, generator=None)
        return latents.flatten(2).transpose(1, 2)

    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        scale = torch.full_like(sigma, guidance) if self.distilled_guidance else None
        embeds = conditions["embeds"]
        velocity: Tensor = self.model(
            hidden_states=beside(latents.flatten(2).transpose(1, 2), conditions),
            timestep=self.timestep(sigma) / 1000,  # the model multiplies by 1000 again
            guidance=scale,
            encoder_hidden_states=embeds,
            txt_ids=self._places(1, 1, embeds.shape[1]),
            img_ids=self._picture_places(),
            return_dict=False,
        )[0][:, : self.image_tokens]
        return velocity.transpose(1, 2).unflatten(2, latents.shape[2:])

    def _picture_places(self) -> Tensor:
        """Those of a result's tokens, and of each picture's."""
        own = self._places(self.token_rows, self.token_columns, 1)
        rows, columns = (side // self.token_side for side in self.reference_size)
        other = self._places(rows, columns, 1)
        first = own.new_tensor([APART, 0, 0, 0])
        numbers = range(1, 1 + self.options.references)
        return torch.cat([own, *(other + number * first for number in numbers)])

    def _places(self, *sides: int) -> Tensor:
        """[tokens, 4]: 0, row, column and place in the prompt of each token."""
        return torch.cartesian_prod(*(torch.arange(n, device=self.device) for n in (1, *sides)))

    def schedule(self, steps: int) -> dict[str, Any]:
        """The shift depends on the number of steps, too."""
        shift = compute_empirical_mu(self.image_tokens, steps)
        return {"sigmas": np.linspace(1.0, 1 / steps, steps), "mu": shift}

    def decode(self, latents: Tensor) -> Tensor:
        images: Tensor = self.pipeline.vae.decode(self._unpacked(latents), return_dict=False)[0]
        return images / 2 + 0.5

    def _unpacked(self, latents: Tensor) -> Tensor:
        """Latents [n, channels / 4, height, width] as the autoencoder takes them."""
        vae = self.pipeline.vae
        mean, variance = (v.view(-1, 1, 1) for v in (vae.bn.running_mean, vae.bn.running_var))
        return pixel_shuffle(latents * (variance + vae.config.batch_norm_eps).sqrt() + mean, 2)

    def output(self, latents: Tensor) -> Tensor:
        return latents.flatten(2).transpose(1, 2)


class Flux2KleinAdapter(Flux2Adapter):
    """FLUX.2 klein: guidance by a second pass, against an empty prompt; none if distilled."""

    pipelines = ("Flux2KleinPipeline",)
    distilled_guidance = False

    def takes_guidance(self) -> bool:
        return not self.pipeline.config.is_distilled

    def takes_negative_prompt(self) -> bool:
        return False

    def _chat(self, prompt: str) -> str:
        text: str = self.pipeline.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
        return text

    def output(self, latents: Tensor) -> Tensor:
        return self._unpacked(latents)
