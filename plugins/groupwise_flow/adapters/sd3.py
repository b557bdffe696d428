"""Stable Diffusion 3 and 3.5."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from groupwise_flow.adapter import Adapter, Conditions, Limit, Row

ATTENTION = tuple(
    f"attn.{name}"
    for name in (
        *("to_q", "to_k", "to_v", "to_out.0"),
        *("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
    )
)
"""Projections of joint attention: of the picture's tokens, and of the text's."""


class SD3Adapter(Adapter):
    """Stable Diffusion 3 and 3.5; guidance is classifier-free, a second pass of the model."""

    pipelines = ("StableDiffusion3Pipeline",)
    targets = ATTENTION
    most_prompt_tokens = 512

    @property
    def patch(self) -> int:
        return int(self.pipeline.transformer.config.patch_size)

    @property
    def most_tokens(self) -> int:
        return int(self.pipeline.transformer.config.pos_embed_max_size)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.pipeline.transformer.config.in_channels, *self.latent_sides)

    def limit(self) -> Limit:
        """`prompt_tokens`, counted by T5's tokenizer; without T5, CLIP's own limit."""
        if self.pipeline.text_encoder_3 is not None:
            return Limit(self.pipeline.tokenizer_3, self.prompt_tokens)
        clip = self.pipeline.tokenizer
        return Limit(clip, clip.model_max_length, "the text encoder")

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor]:
        """As in the pipeline: two CLIP encoders, and T5 where there is one."""
        embeds, _, pooled, _ = self.pipeline.encode_prompt(
            prompt=[row["prompt"] for row in rows],
            prompt_2=None,
            prompt_3=None,
            device=self.device,
            do_classifier_free_guidance=False,
            max_sequence_length=self.prompt_tokens,
        )
        return {"embeds": embeds, "pooled": pooled}

    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        velocity: Tensor = self.model(
            hidden_states=latents,
            timestep=self.timestep(sigma),
            encoder_hidden_states=conditions["embeds"],
            pooled_projections=conditions["pooled"],
            return_dict=False,
        )[0]
        return velocity

    def decode(self, latents: Tensor) -> Tensor:
        return decoded(self.pipeline.vae, latents)


def decoded(vae: Any, latents: Tensor) -> Tensor:
    """Pictures [n, 3, height, width] decoded by an AutoencoderKL with its own scale and shift."""
    shift = vae.config.shift_factor or 0.0
    images: Tensor = vae.decode(latents / vae.config.scaling_factor + shift, return_dict=False)[0]
    return images / 2 + 0.5
