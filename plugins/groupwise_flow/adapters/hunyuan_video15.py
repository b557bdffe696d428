"""HunyuanVideo 1.5, text to video."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers import ClassifierFreeGuidance
from torch import Tensor

from groupwise.kit.errors import UserError
from groupwise_flow.adapter import MASK, Conditions, Limit, Row, VideoAdapter
from groupwise_flow.adapters.sd3 import ATTENTION

PLAIN = {"guidance_rescale": 0.0, "use_original_formulation": False, "start": 0.0, "stop": 1.0}
"""Settings of a guider that computes v_u + scale (v_c - v_u) at each step."""
LAYERS_SKIPPED = 2
"""Layers at the end of the text encoder whose output is not used, as in the pipeline."""


class HunyuanVideo15Adapter(VideoAdapter):
    """HunyuanVideo 1.5: prompts follow a system message; texts in quotes are read by ByT5, too.

    Guidance is a component of the pipeline, its `guider`. Latents stand before those of a picture
    to begin with, and a mask, which are zero in text to video.
    """

    pipelines = ("HunyuanVideo15Pipeline",)
    targets = ATTENTION
    by_token = ("embeds",)
    most_prompt_tokens = 1000
    default_frames, default_rate = 121, 24.0

    def __init__(self, pipeline: Any, **sizes: Any) -> None:
        super().__init__(pipeline, **sizes)
        guider = pipeline.guider
        settings = {name: guider.config.get(name, usual) for name, usual in PLAIN.items()}
        if type(guider) is not ClassifierFreeGuidance or settings != PLAIN:
            raise UserError(
                f"policy.model: guidance is v_u + scale (v_c - v_u) here, at each step, and the "
                f"pipeline's guider is a {type(guider).__name__} with {settings}; expected a "
                f"ClassifierFreeGuidance with {PLAIN} (in guider/guider_config.json)"
            )

    # ---- sizes

    @property
    def patch(self) -> int:
        return int(self.pipeline.transformer.config.patch_size)

    @property
    def token_side(self) -> int:
        return int(self.pipeline.vae_scale_factor_spatial) * self.patch

    @property
    def default_size(self) -> tuple[int, int]:
        """The pipeline's: 16 by 9, of about as many pixels as the model's `target_size` squared."""
        wide, high = self.pipeline.default_aspect_ratio
        height, width = self.pipeline.video_processor.calculate_default_height_width(
            high, wide, self.pipeline.target_size
        )
        return int(height), int(width)

    @property
    def frame_step(self) -> int:
        return int(self.pipeline.vae_scale_factor_temporal)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        channels = self.pipeline.vae.config.latent_channels
        return (channels, self.latent_frames, *self.latent_sides)

    def schedule(self, steps: int) -> dict[str, Any]:
        return {"sigmas": torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float64)[:-1].tolist()}

    # ---- prompts

    def limit(self) -> Limit:
        """`prompt_tokens`, with what the template adds behind a prompt: its beginning is left out
        of the encoding."""
        start = self.pipeline.prompt_template_encode_start_idx
        return Limit(
            self.pipeline.tokenizer, self.prompt_tokens, template=self._chat, uncounted=start
        )

    def _chat(self, prompt: str) -> str:
        turns = [
            {"role": "system", "content": self.pipeline.system_message},
            {"role": "user", "content": prompt or " "},
        ]
        text: str = self.pipeline.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True
        )
        return text

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor]:
        """As in the pipeline, which pads prompts to 1000 tokens."""
        pipeline, prompts = self.pipeline, [row["prompt"] for row in rows]
        embeds, mask = pipeline._get_mllm_prompt_embeds(
            pipeline.text_encoder,
            pipeline.tokenizer,
            prompts,
            self.device,
            tokenizer_max_length=self.prompt_tokens,
            num_hidden_layers_to_skip=LAYERS_SKIPPED,
            system_message=pipeline.system_message,
            crop_start=pipeline.prompt_template_encode_start_idx,
        )
        glyphs, glyphs_mask = pipeline._get_byt5_prompt_embeds(
            pipeline.tokenizer_2,
            pipeline.text_encoder_2,
            prompts,
            self.device,
            tokenizer_max_length=pipeline.tokenizer_2_max_length,
        )
        return {"embeds": embeds, MASK: mask, "glyphs": glyphs, "glyphs_mask": glyphs_mask}

    # ---- passes

    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        pipeline, count = self.pipeline, len(latents)
        picture = (count, pipeline.vision_num_semantic_tokens, pipeline.vision_states_dim)
        first, mask = torch.zeros_like(latents), torch.zeros_like(latents[:, :1])
        velocity: Tensor = self.model(
            hidden_states=torch.cat([latents, first, mask], dim=1),
            timestep=self.timestep(sigma),
            encoder_hidden_states=conditions["embeds"],
            encoder_attention_mask=conditions[MASK].to(latents.device),
            encoder_hidden_states_2=conditions["glyphs"],
            encoder_attention_mask_2=conditions["glyphs_mask"],
            image_embeds=latents.new_zeros(picture),
            return_dict=False,
        )[0]
        return velocity

    def takes_guidance(self) -> bool:
        return bool(self.pipeline.guider.config.get("enabled", True))

    # ---- videos

    def decode(self, latents: Tensor) -> Tensor:
        """One by one: the autoencoder's mask is for one video."""
        vae = self.pipeline.vae
        scaled = (latents / vae.config.scaling_factor).split(1)
        videos = torch.cat([vae.decode(one, return_dict=False)[0] for one in scaled])
        return videos.transpose(1, 2) / 2 + 0.5

    # ---- the pipeline's own call

    rows_per_call = 1

    def call_arguments(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        """Guidance is none of them: see `call_settings`."""
        return self.call_time | ({"negative_prompt": negative_prompt} if negative_prompt else {})

    def call_settings(self, *, guidance: float) -> Mapping[str, Mapping[str, Any]]:
        return {"guider": {"guidance_scale": guidance}}
