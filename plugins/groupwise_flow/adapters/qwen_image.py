"""Qwen-Image."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from groupwise_flow.adapter import MASK, Adapter, Conditions, Limit, Row, beside
from groupwise_flow.adapters.norms import with_norm_of
from groupwise_flow.adapters.sd3 import ATTENTION


class QwenImageAdapter(Adapter):
    """Qwen-Image; guidance keeps the norm of the conditional velocity of each token."""

    pipelines = ("QwenImagePipeline",)
    targets = ATTENTION
    by_token = ("embeds",)
    most_prompt_tokens = 1024
    patch = 2

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.image_tokens, self.pipeline.transformer.config.in_channels)

    def limit(self) -> Limit:
        """`prompt_tokens`, with what the template adds behind a prompt: its beginning is left out
        of the encoding."""
        return Limit(
            self.pipeline.tokenizer,
            self.prompt_tokens,
            template=self.pipeline.prompt_template_encode.format,
            uncounted=self.pipeline.prompt_template_encode_start_idx,
        )

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor | None]:
        """As in the pipeline: the template's beginning is read, and left out of the encoding."""
        template = self.pipeline.prompt_template_encode
        start = self.pipeline.prompt_template_encode_start_idx
        tokens = self.pipeline.tokenizer(
            [template.format(row["prompt"]) for row in rows],
            padding=True,
            padding_side="right",
            truncation=True,
            max_length=start + self.prompt_tokens,
            return_tensors="pt",
        ).to(self.device)
        states = self.pipeline.text_encoder(**tokens, output_hidden_states=True).hidden_states
        return {"embeds": states[-1][:, start:], MASK: tokens.attention_mask[:, start:]}

    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        velocity: Tensor = self.model(
            hidden_states=beside(latents, conditions),
            timestep=self.timestep(sigma) / 1000,  # the model multiplies by 1000 again
            encoder_hidden_states=conditions["embeds"],
            encoder_hidden_states_mask=conditions[MASK].to(latents.device),
            img_shapes=[self.shapes] * len(latents),
            return_dict=False,
        )[0][:, : latents.shape[1]]
        return velocity

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Frames, rows and columns of each picture that a pass reads, in tokens."""
        return [(1, self.token_rows, self.token_columns)]

    def guide(self, conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
        return with_norm_of(super().guide(conditional, unconditional, scale), conditional)

    def schedule(self, steps: int) -> dict[str, Any]:
        return {"sigmas": np.linspace(1.0, 1 / steps, steps), "mu": self.shift(most=1.15)}

    def decode(self, latents: Tensor) -> Tensor:
        """The autoencoder is one for videos; a picture is its only frame."""
        vae, size = self.pipeline.vae, (self.height, self.width)
        latents = self.pipeline._unpack_latents(latents, *size, self.pipeline.vae_scale_factor)
        mean, std = (
            latents.new_tensor(numbers).view(-1, 1, 1, 1)
            for numbers in (vae.config.latents_mean, vae.config.latents_std)
        )
        images: Tensor = vae.decode(latents * std + mean, return_dict=False)[0][:, :, 0]
        return images / 2 + 0.5

    def call_arguments(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        """The call has guidance only with a negative prompt, which may be empty."""
        own = {"true_cfg_scale": guidance, "max_sequence_length": self.prompt_tokens}
        return own | ({"negative_prompt": negative_prompt} if guidance > 1 else {})
