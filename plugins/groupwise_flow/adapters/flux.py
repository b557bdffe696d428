"""FLUX.1."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise_flow.adapter import Adapter, Conditions, Limit, Row, beside
from groupwise_flow.adapters.sd3 import ATTENTION, decoded


class FluxAdapter(Adapter):
    """FLUX.1: 2 x 2 latent pixels per token, guidance as a model input."""

    pipelines = ("FluxPipeline",)
    targets = ATTENTION
    distilled_guidance = True
    most_prompt_tokens = 512
    patch = 2

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.image_tokens, self.pipeline.transformer.config.in_channels)

    def limit(self) -> Limit:
        """`prompt_tokens`, counted by T5's tokenizer."""
        return Limit(self.pipeline.tokenizer_2, self.prompt_tokens)

    def takes_guidance(self) -> bool:
        """True for FLUX.1-dev; FLUX.1-schnell was distilled without guidance."""
        return bool(self.pipeline.transformer.config.guidance_embeds)

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor | None]:
        """As in the pipeline: T5 for the tokens, CLIP for the pooled embedding."""
        embeds, pooled, _ = self.pipeline.encode_prompt(
            prompt=[row["prompt"] for row in rows],
            prompt_2=None,
            device=self.device,
            max_sequence_length=self.prompt_tokens,
        )
        return {"embeds": embeds, "pooled": pooled}

    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        scale = None
        if self.takes_guidance():
            scale = torch.full((len(latents),), guidance, device=latents.device)
        embeds = conditions["embeds"]
        velocity: Tensor = self.model(
            hidden_states=beside(latents, conditions),
            timestep=self.timestep(sigma) / 1000,  # the model multiplies by 1000 again
            guidance=scale,
            encoder_hidden_states=embeds,
            pooled_projections=conditions["pooled"],
            txt_ids=embeds.new_zeros(embeds.shape[1], 3),
            img_ids=self._places(embeds),
            return_dict=False,
        )[0][:, : latents.shape[1]]
        return velocity

    def _places(self, like: Tensor) -> Tensor:
        """[tokens, 3]: 0, row and column of each image token, on the device and dtype of `like`."""
        sides = (1, self.token_rows, self.token_columns)
        places = torch.cartesian_prod(*(torch.arange(n, device=like.device) for n in sides))
        return places.to(like.dtype)

    def decode(self, latents: Tensor) -> Tensor:
        channels = latents.shape[2] // 4
        squares = latents.view(-1, self.token_rows, self.token_columns, channels, 2, 2)
        flat = squares.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        return decoded(self.pipeline.vae, flat)

    def schedule(self, steps: int) -> dict[str, Any]:
        """FLUX's pipeline passes its own sigmas, and a shift even where it is not used."""
        arguments: dict[str, Any] = {"mu": self.shift(most=1.15)}
        if not self.pipeline.scheduler.config.get("use_flow_sigmas"):
            arguments["sigmas"] = np.linspace(1.0, 1 / steps, steps)
        return arguments
