"""Stable Diffusion 3 and 3.5."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from groupwise_flow.adapter import Adapter, Conditions
from groupwise_flow.lengths import Limit

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
TEXT_ATTENTION = ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")


class StableDiffusion3(Adapter):
    """diffusers' `StableDiffusion3Pipeline`; guidance is classifier-free."""

    targets = tuple(f"attn.{name}" for name in (*ATTENTION, *TEXT_ATTENTION))

    @property
    def patch(self) -> int:
        return int(self.pipeline.transformer.config.patch_size)

    @property
    def most_tokens(self) -> int:
        return int(self.pipeline.transformer.config.pos_embed_max_size)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        channels = self.pipeline.transformer.config.in_channels
        return (channels, self.rows * self.patch, self.columns * self.patch)

    @classmethod
    def limit(cls, parts: Mapping[str, Any], prompt_tokens: int) -> Limit:
        """By T5's tokens; where there is no T5, by CLIP's."""
        if parts.get("text_encoder_3") is not None:
            return Limit(parts["tokenizer_3"], prompt_tokens)
        words = parts["tokenizer"]
        return Limit(words, words.model_max_length, "the text encoder")

    def encode(self, prompts: Sequence[str]) -> Conditions:
        """As the pipeline does: two CLIP encoders, and T5 where there is one."""
        pipeline = self.pipeline
        embeds, _, pooled, _ = pipeline.encode_prompt(
            prompt=list(prompts),
            prompt_2=None,
            prompt_3=None,
            device=pipeline.text_encoder.device,
            do_classifier_free_guidance=False,
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
        velocity: Tensor = model(
            hidden_states=latents,
            timestep=time,
            encoder_hidden_states=conditions["embeds"],
            pooled_projections=conditions["pooled"],
            return_dict=False,
        )[0]
        return velocity

    def decode(self, latents: Tensor) -> Tensor:
        images: Tensor = self.pipeline.vae.decode(self.rescaled(latents), return_dict=False)[0]
        return images / 2 + 0.5
