"""LTX-Video, text to video."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from groupwise.kit.section import Section
from groupwise_flow.adapter import MASK, Conditions, Limit, Row, VideoAdapter


class LTXAdapter(VideoAdapter):
    """LTX-Video: packed latents, one token for each; positions count in seconds, by `frame_rate`.

    Newer autoencoders take a time and noise, by which they finish what denoising left.
    """

    class Config(Section):
        """The options of LTX-Video's adapter."""

        decode_timestep: float = Field(
            0.0,
            ge=0,
            le=1,
            description="the noise level that the autoencoder is told, where it takes one",
        )
        decode_noise: float | None = Field(
            None,
            ge=0,
            le=1,
            description="the share of noise that is mixed into latents before they are decoded "
            "(the pipeline's `decode_noise_scale`), the same for all videos; as `decode_timestep` "
            "if unset",
        )

    pipelines = ("LTXPipeline",)
    targets = tuple(
        f"attn{number}.{name}" for number in (1, 2) for name in ("to_q", "to_k", "to_v", "to_out.0")
    )
    by_token = ("embeds",)
    default_frames, default_rate = 161, 25.0

    # ---- sizes

    @property
    def patch(self) -> int:
        return int(self.pipeline.transformer_spatial_patch_size)

    @property
    def token_side(self) -> int:
        return int(self.pipeline.vae_spatial_compression_ratio) * self.patch

    @property
    def default_size(self) -> tuple[int, int]:
        return 512, 704

    @property
    def frame_step(self) -> int:
        return int(self.pipeline.vae_temporal_compression_ratio)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.video_tokens, self.pipeline.transformer.config.in_channels)

    def schedule(self, steps: int) -> dict[str, Any]:
        return {
            "sigmas": np.linspace(1.0, 1 / steps, steps),
            "mu": self.shift(most=1.15, tokens=self.video_tokens),
        }

    # ---- prompts

    def limit(self) -> Limit:
        return Limit(self.pipeline.tokenizer, self.prompt_tokens)

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor]:
        """As in the pipeline: T5 reads the padding, and the transformer does not."""
        embeds, mask, _, _ = self.pipeline.encode_prompt(
            [row["prompt"] for row in rows],
            do_classifier_free_guidance=False,
            max_sequence_length=self.prompt_tokens,
            device=self.device,
        )
        return {"embeds": embeds, MASK: mask}

    # ---- passes

    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        rows, columns = self.latent_sides
        side = self.pipeline.vae_spatial_compression_ratio
        velocity: Tensor = self.model(
            hidden_states=latents,
            encoder_hidden_states=conditions["embeds"],
            timestep=self.timestep(sigma),
            encoder_attention_mask=conditions[MASK].to(latents.device),
            num_frames=self.latent_frames,
            height=rows,
            width=columns,
            rope_interpolation_scale=(self.frame_step / self.frame_rate, side, side),
            return_dict=False,
        )[0]
        return velocity

    # ---- videos

    @property
    def is_timed(self) -> bool:
        """Whether the autoencoder takes a time and noise."""
        return bool(self.pipeline.vae.config.timestep_conditioning)

    @property
    def _noise(self) -> float:
        noise: float | None = self.options.decode_noise
        return self.options.decode_timestep if noise is None else noise

    def decode(self, latents: Tensor) -> Tensor:
        vae, pipeline = self.pipeline.vae, self.pipeline
        sizes = (self.latent_frames, *self.latent_sides)
        patches = (
            pipeline.transformer_spatial_patch_size,
            pipeline.transformer_temporal_patch_size,
        )
        latents = pipeline._denormalize_latents(
            pipeline._unpack_latents(latents, *sizes, *patches),
            vae.latents_mean,
            vae.latents_std,
            vae.config.scaling_factor,
        )
        time = None
        if self.is_timed:
            time = torch.full((len(latents),), self.options.decode_timestep).to(latents)
            latents = latents.lerp(self._decoding_noise(latents), self._noise)
        videos: Tensor = vae.decode(latents, time, return_dict=False)[0]
        return videos.transpose(1, 2) / 2 + 0.5

    def _decoding_noise(self, latents: Tensor) -> Tensor:
        """[n, ...] the same for each row, so that a video depends on its latents alone."""
        if latents.is_meta or not self._noise:
            return torch.zeros_like(latents)
        noise = torch.randn(latents.shape[1:], generator=torch.Generator().manual_seed(0))
        return noise.to(latents).expand_as(latents)

    def tile(self) -> None:
        """In space and in time."""
        super().tile()
        self.pipeline.vae.use_framewise_decoding = True

    # ---- the pipeline's own call

    @property
    def call_time(self) -> dict[str, Any]:
        return {"num_frames": self.frames, "frame_rate": self.frame_rate}

    def call_arguments(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        own = super().call_arguments(guidance=guidance, negative_prompt=negative_prompt)
        if not self.is_timed:
            return own
        time = {"decode_timestep": self.options.decode_timestep}
        return {**own, **time, "decode_noise_scale": self._noise}
