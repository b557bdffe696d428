"""Guided: the model's velocities with guidance, computed in the configured precision."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from groupwise.attention import without_cudnn
from groupwise.errors import UserError
from groupwise_flow.adapter import Adapter, Conditions, Row
from groupwise_flow.denoising import Rows
from groupwise_flow.encodings import Encodings
from groupwise_flow.precision import InFloat32, computing
from groupwise_flow.settings import Settings

DECODED = 4 * 512 * 512
"""Pixels decoded at once, enough to keep a GPU busy: the autoencoders of Stable Diffusion 3 and
FLUX take some 4 KiB per pixel, so 4 GiB."""


class Guided:
    """Guided velocities of the trained model, and pictures decoded from latents."""

    def __init__(self, adapter: Adapter, config: Settings) -> None:
        if config.negative_prompt and adapter.distilled_guidance:
            raise UserError(
                "policy.negative_prompt: this model takes guidance as an input and has no "
                "unconditional pass that a negative prompt could change; leave it unset"
            )
        if config.negative_prompt and max(config.guidance, config.guidance_in_training) <= 1:
            raise UserError(
                "policy.negative_prompt: it has no effect without guidance; set policy.guidance "
                "above 1, or leave it unset"
            )
        check_guidance(adapter, config)
        check_gradient(adapter, config)
        self.adapter, self.config = adapter, config
        self.limit = adapter.limit()
        self.encodings = Encodings(adapter, most=config.keep_prompts, check=self._check)
        self._exact = False

    def _check(self, rows: Sequence[Row]) -> None:
        """Check lengths again: some sources create prompts only during the run."""
        texts = [self.adapter.text(row) for row in rows]
        if self.limit is not None and self.config.long_prompts != "cut":
            self.limit.check(texts)

    @property
    def device(self) -> torch.device:
        return self.adapter.device

    def conditions(self, rows: Sequence[Row]) -> Conditions:
        """[n, ...] conditions of n rows of the dataset, on the device."""
        return self.encodings(rows, self.device)

    def negative(self, rows: Sequence[Row], guidance: float) -> Conditions | None:
        """Conditions [n, ...] of the unconditional pass; None where there is none."""
        if not has_two_branches(self.adapter, guidance):
            return None
        others = {
            id(row): self.adapter.unconditional_row(row, self.config.negative_prompt)
            for row in rows
        }
        return self.conditions([others[id(row)] for row in rows])

    def velocity(
        self,
        latents: Tensor,
        sigma: Tensor,
        conditions: Conditions,
        guidance: float,
        *,
        negative: Conditions | None = None,
        unconditional: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The guided velocity [n, ...] in float32, and the unconditional velocity or None.

        latents: [n, ...]; sigma: [n]; negative: conditions of the unconditional pass;
        unconditional: its velocity, if already computed. With `guidance_gradient: conditional` that
        velocity has no gradient.
        """

        def predict(conditions: Conditions) -> Tensor:
            precision: Any = InFloat32() if self._exact else self._computing()
            with precision, without_cudnn():
                return self.adapter.velocity(
                    self.adapter.model, latents, sigma, conditions, guidance=guidance
                ).float()

        if unconditional is None and negative is not None:
            # Not one pass of both: with another batch size than in sampling rounding would differ.
            with torch.set_grad_enabled(
                torch.is_grad_enabled() and self.config.trains_unconditional
            ):
                unconditional = predict(negative)
        if unconditional is None:
            return predict(conditions), None
        return self.adapter.guide(predict(conditions), unconditional, guidance), unconditional

    def _computing(self) -> Any:
        return computing(self.config.precision, self.device)

    def completions(self, latents: Tensor) -> tuple[list[Any], Tensor]:
        """Pictures of latents [B, ...] as rewards receive them, and as tensors [B, ...] in
        float32."""
        pixels = self.adapter.height * self.adapter.width
        size = max(1, min(self.config.batch, DECODED // pixels))
        parts = [self.adapter.completions(some) for some in latents.split(size)]
        return [one for some, _ in parts for one in some], torch.cat([part for _, part in parts])

    def decode(self, latents: Tensor) -> Tensor:
        """Pictures of latents [n, ...] as CPU tensors: there may be more than a device holds."""
        parts = latents.split(self.config.batch)
        return torch.cat([self.adapter.decode(some).float().clamp(0, 1).cpu() for some in parts])

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """The context in which velocities are computed in float32, whatever the precision."""
        self._exact = True
        try:
            yield
        finally:
            self._exact = False


def select(conditions: Conditions, rows: Rows) -> Conditions:
    """The conditions of some rows.

    Contiguous also for rows that share one condition, since a kernel for another layout would round
    differently in half precision.
    """
    return {name: value[rows].contiguous() for name, value in conditions.items()}


def check_guidance(adapter: Adapter, config: Settings) -> None:
    """Raise UserError for a guidance scale above 1 where the model takes none."""
    for key, scale in {
        "guidance": config.guidance,
        "training_guidance": config.guidance_in_training,
    }.items():
        if scale > 1 and not adapter.takes_guidance():
            raise UserError(
                f"policy.{key}: this model takes no guidance (it is distilled, like "
                f"FLUX.1-schnell); leave it at 1, found {scale:g}"
            )


def has_two_branches(adapter: Adapter, guidance: float) -> bool:
    """Whether guidance of this scale takes an unconditional pass."""
    return guidance > 1 and not adapter.distilled_guidance


def check_gradient(adapter: Adapter, config: Settings) -> None:
    """Raise UserError for `guidance_gradient: conditional` where training has one branch only."""
    if not config.trains_unconditional and not has_two_branches(
        adapter, config.guidance_in_training
    ):
        raise UserError(
            "policy.guidance_gradient: conditional has no effect, since training has no "
            "unconditional pass (the guidance scale in training is not above 1, or the model takes "
            "it as an input); leave guidance_gradient unset"
        )
