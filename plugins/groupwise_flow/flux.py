"""FLUX.1."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from groupwise_flow.adapter import Adapter, Conditions
from groupwise_flow.lengths import Limit
from groupwise_flow.sd3 import ATTENTION, TEXT_ATTENTION


class Flux(Adapter):
    """diffusers' `FluxPipeline`: four latent pixels to a token, guidance given to the model."""

    targets = tuple(f"attn.{name}" for name in (*ATTENTION, *TEXT_ATTENTION))
    distilled_guidance = True
    patch = 2

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.rows * self.columns, self.pipeline.transformer.config.in_channels)

    @classmethod
    def limit(cls, parts: Mapping[str, Any], prompt_tokens: int) -> Limit:
        """By T5's tokens."""
        return Limit(parts["tokenizer_2"], prompt_tokens)

    @classmethod
    def takes_guidance(cls, config: Mapping[str, Any]) -> bool:
        """FLUX.1-dev does; FLUX.1-schnell was distilled without it."""
        return bool(config.get("guidance_embeds"))

    def encode(self, prompts: Sequence[str]) -> Conditions:
        """As the pipeline does: T5 for the tokens, CLIP for the pooled embedding."""
        pipeline = self.pipeline
        embeds, pooled, _ = pipeline.encode_prompt(
            prompt=list(prompts),
            prompt_2=None,
            device=pipeline.text_encoder.device,
            max_sequence_length=self.prompt_tokens,
        )
        return {"embeds": embeds, "pooled": pooled}

    def velocity(
        self,
        model: nn.Module,
        latents: Tensor,
        time: Tensor,
        conditions: Conditions,
        *,
        guidance: float,
    ) -> Tensor:
        scale = None
        if self.pipeline.transformer.config.guidance_embeds:
            scale = torch.full((len(latents),), guidance, device=latents.device)
        embeds = conditions["embeds"]
        velocity: Tensor = model(
            hidden_states=latents,
            timestep=time / 1000,
            guidance=scale,
            encoder_hidden_states=embeds,
            pooled_projections=conditions["pooled"],
            txt_ids=embeds.new_zeros(embeds.shape[1], 3),
            img_ids=self._places(embeds),
            return_dict=False,
        )[0]
        return velocity

    def _places(self, like: Tensor) -> Tensor:
        """[tokens, 3]: 0, row and column of each image token; made where it is needed."""
        sides = (1, self.rows, self.columns)
        places = torch.cartesian_prod(*(torch.arange(n, device=like.device) for n in sides))
        return places.to(like.dtype)

    def decode(self, latents: Tensor) -> Tensor:
        channels = latents.shape[2] // 4
        squares = latents.view(-1, self.rows, self.columns, channels, 2, 2)
        flat = squares.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        images: Tensor = self.pipeline.vae.decode(self.rescaled(flat), return_dict=False)[0]
        return images / 2 + 0.5

    def schedule(self, steps: int) -> dict[str, Any]:
        """FLUX's pipeline gives sigmas of its own, and a shift whether it is used or not."""
        arguments: dict[str, Any] = {"mu": self.shift(most=1.15)}
        if not self.pipeline.scheduler.config.get("use_flow_sigmas"):
            arguments["sigmas"] = np.linspace(1.0, 1 / steps, steps)
        return arguments
