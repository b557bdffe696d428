"""Sana and SANA-1.5."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers import DPMSolverMultistepScheduler
from pydantic import Field
from torch import Tensor

from groupwise.kit.section import Section
from groupwise_flow.adapter import MASK, UNCONDITIONAL, Adapter, Conditions, Exchange, Limit, Row
from groupwise_flow.adapters.first_order import FIRST_ORDER, is_first_order

ROUNDED = 1e-4
"""A timestep below a whole number by so little is that number: levels are in float32."""


class SanaAdapter(Adapter):
    """Sana: linear attention over latents of 32 x 32 pixels; prompts follow an instruction."""

    class Config(Section):
        """The options of Sana's adapter."""

        instruction: bool = Field(
            True,
            description="put the pipeline's instruction to enhance the prompt before each prompt "
            "(its `complex_human_instruction`)",
        )

    pipelines = ("SanaPipeline",)
    targets = tuple(
        f"attn{number}.{name}" for number in (1, 2) for name in ("to_q", "to_k", "to_v", "to_out.0")
    )
    by_token = ("embeds",)
    most_prompt_tokens = 300

    @property
    def default_side(self) -> int:
        return int(self.pipeline.transformer.config.sample_size * self.pipeline.vae_scale_factor)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.pipeline.transformer.config.in_channels, self.token_rows, self.token_columns)

    def exchange(self, scheduler: Any) -> Exchange | None:
        """The folders of Sana hold a second-order solver: the same solver, of first order."""
        if not scheduler.config.get("use_flow_sigmas") or is_first_order(scheduler):
            return None
        return Exchange(DPMSolverMultistepScheduler, FIRST_ORDER)

    def timestep(self, sigma: Tensor) -> Tensor:
        """Whole ones for DPM-Solver++, which cuts off the rest."""
        time = super().timestep(sigma)
        return (time + ROUNDED).floor() if is_first_order(self.pipeline.scheduler) else time

    # ---- prompts

    @property
    def instruction(self) -> Sequence[str]:
        """The lines before each prompt; none if that is off."""
        call = inspect.signature(type(self.pipeline).__call__)
        lines: list[str] = call.parameters["complex_human_instruction"].default
        return lines if self.options.instruction else ()

    def limit(self) -> Limit:
        """`prompt_tokens`; of the instruction's tokens all but two are on top of them."""
        lines = "\n".join(self.instruction)
        added = len(self.pipeline.tokenizer.encode(lines)) - 2 if lines else 0
        return Limit(
            self.pipeline.tokenizer, self.prompt_tokens, template=lines.__add__, uncounted=added
        )

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor | None]:
        """As in the pipeline: the instruction, and not before the unconditional prompt."""
        parts = [
            self.pipeline.encode_prompt(
                row["prompt"],
                do_classifier_free_guidance=False,
                device=self.device,
                max_sequence_length=self.prompt_tokens,
                complex_human_instruction=None if row.get(UNCONDITIONAL) else self.instruction,
            )[:2]
            for row in rows
        ]
        embeds, masks = zip(*parts, strict=True)
        return {"embeds": torch.cat(embeds), MASK: torch.cat(masks)}

    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        config = self.pipeline.transformer.config
        velocity: Tensor = self.model(
            latents,
            encoder_hidden_states=conditions["embeds"],
            encoder_attention_mask=conditions[MASK].to(latents.dtype),
            timestep=self.timestep(sigma) * config.timestep_scale,
            return_dict=False,
        )[0]
        return velocity[:, : config.in_channels]  # some models also predict a variance

    def decode(self, latents: Tensor) -> Tensor:
        vae = self.pipeline.vae
        images: Tensor = vae.decode(latents / vae.config.scaling_factor, return_dict=False)[0]
        return images / 2 + 0.5

    def call_arguments(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        """The call otherwise draws another size than the one that is asked for, and resizes it."""
        own = super().call_arguments(guidance=guidance, negative_prompt=negative_prompt)
        plain = {} if self.options.instruction else {"complex_human_instruction": None}
        return {**own, **plain, "use_resolution_binning": False}
