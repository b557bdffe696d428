"""Case: an adapter on a pipeline, what it computes, and what the pipeline's own call draws."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from groupwise.testing import compare
from groupwise_flow.adapter import Adapter, Conditions, Row, VideoAdapter
from groupwise_flow.passes.guidance import Guided
from groupwise_flow.passes.latents import sample_latents
from groupwise_flow.process.denoising import without_noise
from groupwise_flow.process.schedules import levels
from groupwise_flow.settings import FlowSettings

LIMIT = 1e-4
"""Largest gap between velocities or latents that should be equal, relative above 1; in float32."""
STEPS = 4
ROWS_OF_TOKENS, MOST = 2, 64
"""Of pictures whose size is not usual: tokens along a side, at least, and tried at most."""


class Case:
    """An adapter, some rows, and its conditions and velocities for them."""

    def __init__(
        self, kind: type[Adapter], pipeline: Any, rows: Sequence[Row], sizes: Mapping[str, Any]
    ) -> None:
        self.kind, self.pipeline, self.rows, self.sizes = kind, pipeline, list(rows), sizes

    @cached_property
    def adapter(self) -> Adapter:
        usual = self.kind(self.pipeline, **self.sizes)
        if isinstance(usual, VideoAdapter) and self.sizes.get("frames") is None:
            self.sizes = {**self.sizes, "frames": 1 + usual.frame_step}
            usual = self.kind(self.pipeline, **self.sizes)
        if self.sizes["height"] is not None or self.sizes["width"] is not None:
            return usual
        side, most = usual.token_side, min(MOST, usual.most_tokens or MOST)
        for rows in range(ROWS_OF_TOKENS, most):
            size = {"height": rows * side, "width": (rows + 1) * side}
            adapter = self.kind(self.pipeline, **{**self.sizes, **size})
            if len({*adapter.latent_shape}) == len(adapter.latent_shape):
                return adapter
        return usual

    def guided(self, scale: float, negative_prompt: str = "") -> Guided:
        """The guided model of a policy with this adapter; nothing is loaded for it."""
        adapter = self.adapter
        settings = FlowSettings(
            model="none",
            guidance=scale,
            negative_prompt=negative_prompt,
            height=adapter.height,
            width=adapter.width,
            prompt_tokens=adapter.prompt_tokens,
        )
        return Guided(adapter, settings)

    @cached_property
    def conditions(self) -> Conditions:
        return self.guided(1.0).conditions(self.rows)

    @cached_property
    def start(self) -> Tensor:
        """[n, ...] standard normal."""
        shape = (len(self.rows), *self.adapter.latent_shape)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        return noise.to(self.adapter.device)

    @torch.no_grad()
    def velocity(
        self, latents: Tensor, conditions: Conditions, *, sigma: float = 0.7, guidance: float = 1.0
    ) -> Tensor:
        levels = torch.full((len(latents),), sigma, device=latents.device)
        return self.adapter.velocity(latents, levels, conditions, guidance=guidance)

    @cached_property
    def whole(self) -> Tensor:
        """The velocities of all rows at once."""
        return self.velocity(self.start, self.conditions)

    @torch.no_grad()
    def latents(self, scale: float, negative_prompt: str = "") -> Tensor:
        """[n, ...]: our latents, denoised without noise."""
        guided, seeds = self.guided(scale, negative_prompt), range(len(self.rows))
        plan = without_noise(levels(self.adapter, STEPS), len(seeds))
        return sample_latents(guided, self.rows, seeds, plan, guidance=scale).latents

    def denoising_gap(self, scale: float, negative_prompt: str = "") -> str | None:
        """How our latents differ from the output of the pipeline's own call; None if they do
        not."""
        drawn = self.drawn(scale, "latent", negative_prompt)
        ours = self.adapter.output(self.latents(scale, negative_prompt))
        gap = compare.gap(ours.flatten(1), drawn.flatten(1))
        return f"latents differ from the pipeline's by {gap:.2g}" if gap > LIMIT else None

    def drawn(self, scale: float, output_type: str, negative_prompt: str = "") -> Tensor:
        """[n, ...]: the output of the pipeline's own call on the noise of `sample_latents`.

        output_type: the pipeline's own: "latent", or "pt" for pictures in [0, 1].
        """
        adapter, count = self.adapter, len(self.rows)
        for name, settings in adapter.call_settings(guidance=scale).items():
            other = getattr(self.pipeline, name).new(**settings)
            self.pipeline.register_modules(**{name: other})
        for line in adapter.call_code:
            exec(line)
        call = adapter.call_arguments(guidance=scale, negative_prompt=negative_prompt)
        together = adapter.rows_per_call or count
        seeds = [range(count)[n : n + together] for n in range(0, count, together)]
        return torch.cat([self._drawn(some, output_type, call) for some in seeds])

    def _drawn(self, seeds: range, output_type: str, call: Mapping[str, Any]) -> Tensor:
        """The output of one call; seeds: numbers of rows, too."""
        adapter, rows = self.adapter, [self.rows[number] for number in seeds]
        start = [
            torch.randn(adapter.latent_shape, generator=torch.Generator().manual_seed(seed))
            for seed in seeds
        ]
        negative = {n: [call[n]] * len(rows) for n in ("negative_prompt",) if n in call}
        output: Tensor = self.pipeline(
            **adapter.call_rows(rows),
            num_inference_steps=STEPS,
            latents=adapter.call_latents(torch.stack(start).to(adapter.device)),
            height=adapter.height,
            width=adapter.width,
            output_type=output_type,
            return_dict=False,
            **{**call, **negative},
        )[0]
        return output
