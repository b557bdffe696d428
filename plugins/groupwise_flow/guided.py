"""Guided: the model that answers, with guidance, in the precision that was asked for."""

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
"""Pixels of pictures that are decoded together, which keep a GPU busy: the autoencoders of Stable
Diffusion 3 and FLUX take some 4 KiB for each, so 4 GiB."""


class Guided:
    """Velocities of the trained model, and what rewards see of latents."""

    def __init__(self, adapter: Adapter, config: Settings) -> None:
        if config.negative_prompt and adapter.distilled_guidance:
            raise UserError(
                "policy.negative_prompt: this model takes guidance as an input and has no "
                "unconditional pass that a negative prompt could change"
            )
        if config.negative_prompt and max(config.guidance, config.guidance_in_training) <= 1:
            raise UserError("policy.negative_prompt: it has no effect without guidance above 1")
        check_guidance(adapter, config)
        self.adapter, self.config = adapter, config
        self.limit = adapter.limit()
        self.encodings = Encodings(adapter, most=config.keep_prompts, check=self._check)
        self._exact = False

    def _check(self, rows: Sequence[Row]) -> None:
        """Here, too: not every prompt was there to be checked before the run."""
        texts = [self.adapter.text(row) for row in rows]
        if self.limit is not None and self.config.long_prompts != "cut":
            self.limit.check(texts)

    @property
    def device(self) -> torch.device:
        return self.adapter.device

    def conditions(self, rows: Sequence[Row]) -> Conditions:
        """[n, ...] of n rows of the dataset, on the device."""
        return self.encodings(rows, self.device)

    def negative(self, rows: Sequence[Row], guidance: float) -> Conditions | None:
        """What guidance leads away from, [n, ...]; None where there is no unconditional pass."""
        if guidance <= 1 or self.adapter.distilled_guidance:
            return None
        others = {id(row): self.adapter.without(row, self.config.negative_prompt) for row in rows}
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
        """The guided velocity [n, ...] in float32, and its unconditional part where there is one.

        latents: [n, ...]; sigma: [n]; negative: what that part is computed of; unconditional: that
        part itself, if it is known. It has no gradient, as in the published training.
        """

        def predict(conditions: Conditions) -> Tensor:
            precision: Any = InFloat32() if self._exact else self._computing()
            with precision, without_cudnn():
                return self.adapter.velocity(
                    self.adapter.model, latents, sigma, conditions, guidance=guidance
                ).float()

        if unconditional is None and negative is not None:
            with torch.no_grad():
                unconditional = predict(negative)
        if unconditional is None:
            return predict(conditions), None
        return self.adapter.guide(predict(conditions), unconditional, guidance), unconditional

    def _computing(self) -> Any:
        return computing(self.config.precision, self.device)

    def completions(self, latents: Tensor) -> tuple[list[Any], Tensor]:
        """What rewards see of latents [B, ...], and as tensors [B, ...]; in float32 always."""
        pixels = self.adapter.height * self.adapter.width
        size = max(1, min(self.config.batch, DECODED // pixels))
        parts = [self.adapter.completions(some) for some in latents.split(size)]
        return [one for some, _ in parts for one in some], torch.cat([part for _, part in parts])

    def decode(self, latents: Tensor) -> Tensor:
        """The pictures of latents [n, ...] alone, in CPU memory: more than a device may hold."""
        parts = latents.split(self.config.batch)
        return torch.cat([self.adapter.decode(some).float().clamp(0, 1).cpu() for some in parts])

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """The same weights answer in float32, whatever the precision."""
        self._exact = True
        try:
            yield
        finally:
            self._exact = False


def at(conditions: Conditions, rows: Rows) -> Conditions:
    """Those of some rows."""
    return {name: value[rows] for name, value in conditions.items()}


def check_guidance(adapter: Adapter, config: Settings) -> None:
    """UserError for guidance of a model that takes none."""
    for key, scale in {
        "guidance": config.guidance,
        "training_guidance": config.guidance_in_training,
    }.items():
        if scale > 1 and not adapter.takes_guidance():
            raise UserError(
                f"policy.{key}: this model was made to need no guidance and takes none, as "
                f"FLUX.1-schnell; leave it at 1, found {scale:g}"
            )
