"""Lumina-Image 2.0."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from groupwise.kit.section import Section
from groupwise_flow.adapter import MASK, UNCONDITIONAL, Adapter, Conditions, Limit, Row
from groupwise_flow.adapters.norms import with_norm_of
from groupwise_flow.adapters.sd3 import decoded


class Lumina2Adapter(Adapter):
    """Lumina-Image 2.0: one sequence of prompt and picture; prompts follow a system prompt."""

    class Config(Section):
        """The options of Lumina-Image 2.0's adapter."""

        normalization: bool = Field(
            True,
            description="guidance keeps the norm of the conditional velocity (the pipeline's "
            "`cfg_normalization`)",
        )

    pipelines = ("Lumina2Pipeline",)
    targets = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0")
    by_token = ("embeds",)
    most_prompt_tokens = 256

    @property
    def patch(self) -> int:
        return int(self.pipeline.transformer.config.patch_size)

    @property
    def most_tokens(self) -> int:
        return int(min(self.pipeline.transformer.config.axes_lens[1:]))

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.pipeline.transformer.config.in_channels, *self.latent_sides)

    def limit(self) -> Limit:
        """`prompt_tokens`, the system prompt's included."""
        system = f"{self.pipeline.system_prompt} <Prompt Start> "
        return Limit(self.pipeline.tokenizer, self.prompt_tokens, template=system.__add__)

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor | None]:
        """As in the pipeline: the system prompt, and not before the unconditional prompt."""
        embeds, masks = zip(*map(self._encoded, rows), strict=True)
        return {"embeds": torch.cat(embeds), MASK: torch.cat(masks)}

    def _encoded(self, row: Row) -> tuple[Tensor, Tensor]:
        how = {"device": self.device, "max_sequence_length": self.prompt_tokens}
        if row.get(UNCONDITIONAL):
            both = self.pipeline.encode_prompt("", negative_prompt=row["prompt"], **how)
            return both[2], both[3]
        one = self.pipeline.encode_prompt(row["prompt"], do_classifier_free_guidance=False, **how)
        return one[0], one[1]

    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        """The model counts time from noise to data, and predicts data - noise."""
        trained = self.pipeline.scheduler.config.num_train_timesteps
        velocity: Tensor = self.model(
            hidden_states=latents,
            timestep=1 - self.timestep(sigma) / trained,
            encoder_hidden_states=conditions["embeds"],
            encoder_attention_mask=conditions[MASK],
            return_dict=False,
        )[0]
        return -velocity

    def guide(self, conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
        guided = super().guide(conditional, unconditional, scale)
        return with_norm_of(guided, conditional) if self.options.normalization else guided

    def schedule(self, steps: int) -> dict[str, Any]:
        """Where the schedule shifts with the picture's size, the pipeline takes the number of
        latent channels for that of tokens."""
        channels = self.pipeline.transformer.config.in_channels
        return {
            "sigmas": np.linspace(1.0, 1 / steps, steps),
            "mu": self.shift(most=1.15, tokens=channels),
        }

    def decode(self, latents: Tensor) -> Tensor:
        return decoded(self.pipeline.vae, latents)

    def call_arguments(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        own = super().call_arguments(guidance=guidance, negative_prompt=negative_prompt)
        return {**own, "cfg_normalization": self.options.normalization}
