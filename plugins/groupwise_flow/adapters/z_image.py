"""Z-Image and Z-Image-Turbo."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise_flow.adapter import MASK, Adapter, Conditions, Limit, Row
from groupwise_flow.adapters.sd3 import decoded


class ZImageAdapter(Adapter):
    """Z-Image: one sequence of picture and prompt, each as long as it is, without padding."""

    pipelines = ("ZImagePipeline",)
    targets = tuple(f"attention.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0"))
    by_token = ("embeds",)
    most_prompt_tokens = 512  # the pipeline's own, and what its authors use
    patch = 2

    @property
    def default_side(self) -> int:
        return 1024

    @property
    def most_tokens(self) -> int:
        return int(min(self.pipeline.transformer.config.axes_lens[1:]))

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.pipeline.transformer.config.in_channels, *self.latent_sides)

    def limit(self) -> Limit:
        """`prompt_tokens`, the chat template's included."""
        return Limit(self.pipeline.tokenizer, self.prompt_tokens, template=self._chat)

    def _chat(self, prompt: str) -> str:
        text: str = self.pipeline.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=True,
        )
        return text

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor | None]:
        """As in the pipeline, which pads all prompts to one length and drops the padding again."""
        tokens = self.pipeline.tokenizer(
            [self._chat(row["prompt"]) for row in rows],
            padding=True,
            padding_side="right",
            truncation=True,
            max_length=self.prompt_tokens,
            return_tensors="pt",
        ).to(self.device)
        states = self.pipeline.text_encoder(**tokens, output_hidden_states=True).hidden_states
        return {"embeds": states[-2], MASK: tokens.attention_mask}

    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        """The model takes lists, counts time from noise to data and predicts data - noise."""
        embeds = zip(conditions["embeds"], conditions.lengths, strict=True)
        outputs = self.model(
            list(latents.unsqueeze(2)),  # one frame each
            # Rounded as in the pipeline, since the model multiplies it by 1000 again.
            (1000 - self.timestep(sigma)) / 1000,
            [prompt[:length] for prompt, length in embeds],
            return_dict=False,
        )[0]
        return -torch.stack(outputs).squeeze(2)

    def call_guidance(self, scale: float) -> float:
        """The pipeline's guidance is v_c + scale (v_c - v_u), off at 0."""
        return scale - 1

    def schedule(self, steps: int) -> dict[str, Any]:
        return {
            "sigmas": torch.linspace(1.0, 1 / steps, steps).tolist(),
            "mu": self.shift(most=1.15),
        }

    def decode(self, latents: Tensor) -> Tensor:
        return decoded(self.pipeline.vae, latents)
