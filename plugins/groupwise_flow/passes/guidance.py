"""Guided: the model's velocities with guidance, computed in the configured precision."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from groupwise.kit.attention import without_cudnn
from groupwise.kit.errors import UserError
from groupwise_flow.adapter import UNCONDITIONAL, Adapter, Conditions, Row
from groupwise_flow.model.precision import InFloat32, computing
from groupwise_flow.prompts.encoders import Encoders
from groupwise_flow.prompts.encodings import Encodings
from groupwise_flow.settings import Settings

PIXELS = "pixels"
"""The fact of pictures as tensors."""
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
        if config.negative_prompt and not adapter.takes_negative_prompt():
            raise UserError(
                f"policy.negative_prompt: the call of {type(adapter.pipeline).__name__} takes "
                f"none, so the saved model could not be used with it; leave it unset"
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
        self.encoders = Encoders(adapter, config)
        self.encodings = Encodings(
            adapter, most=config.keep_prompts, check=self._check, on=self.encoders.on
        )
        self._exact = False

    def at_evaluation(self) -> Self:
        """The same for pictures of `evaluation_size`."""
        other = copy(self)
        other.adapter = at_evaluation(self.adapter, self.config)
        return other

    def _check(self, rows: Sequence[Row]) -> None:
        """Check rows again: some sources create prompts only during the run."""
        self.encoders.check_present(rows[0])
        texts = [self.adapter.text(row) for row in rows]
        for row in rows:
            if UNCONDITIONAL not in row:
                self.adapter.check_row(row)
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
        others = {id(row): self._unconditional(row) for row in rows}
        return self.conditions([others[id(row)] for row in rows])

    def _unconditional(self, row: Row) -> Row:
        return self.adapter.unconditional_row(row, self.config.negative_prompt)

    def cached(self, rows: Iterable[Row]) -> list[Row]:
        """The rows that `encoders: cached` encodes before the first step: those that are drawn, and
        the unconditional ones."""
        drawn, limit = list(rows), self.limit
        if limit is not None and self.config.long_prompts == "skip":
            long = limit.too_long([self.adapter.text(row) for row in drawn])
            drawn = [row for row in drawn if self.adapter.text(row) not in long]
        scales = (self.config.guidance, self.config.guidance_in_training)
        if not has_two_branches(self.adapter, max(scales)):
            return drawn
        return [*drawn, *map(self._unconditional, drawn)]

    def cache(self, rows: Iterable[Row]) -> None:
        """Encode all rows that will be drawn, and drop the encoders."""
        self.encodings.cache(self.cached(rows), self.device)
        self.encoders.drop()

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
                return self.adapter.velocity(latents, sigma, conditions, guidance=guidance).float()

        if unconditional is None and negative is not None:
            # Not one pass of both: with another batch size than in sampling rounding would differ.
            with torch.set_grad_enabled(
                torch.is_grad_enabled() and self.config.trains_unconditional
            ):
                unconditional = predict(negative)
        if unconditional is None:
            return predict(conditions), None
        scale = self.adapter.scale_at(guidance, sigma)
        if isinstance(scale, Tensor):
            scale = scale.view(-1, *[1] * (latents.ndim - 1))
        return self.adapter.guide(predict(conditions), unconditional, scale), unconditional

    def velocities(
        self,
        rows: Sequence[Row],
        latents: Tensor,
        sigma: Tensor,
        *,
        unconditional: Tensor | None = None,
    ) -> Tensor:
        """The guided velocities [b, t, ...] of t latents for each of b rows, as in training.

        latents: [b, t, ...]; sigma: [b, t]; unconditional: [b, t, ...], if already computed.
        """
        count, width = sigma.shape
        each = self.each(count, width)
        guidance = self.config.guidance_in_training
        negative = self.negative(rows, guidance) if unconditional is None else None
        velocity, _ = self.velocity(
            latents.flatten(0, 1),
            sigma.flatten(),
            self.conditions(rows).select(*each),
            guidance,
            negative=None if negative is None else negative.select(*each),
            unconditional=None if unconditional is None else unconditional.flatten(0, 1),
        )
        return velocity.unflatten(0, (count, width))

    def each(self, count: int, width: int) -> tuple[Tensor, list[int]]:
        """[count * width] every one of `count` rows `width` times: on the device, on the host."""
        numbers = torch.arange(count, device=self.device)
        return numbers.repeat_interleave(width), [n for n in range(count) for _ in range(width)]

    def _computing(self) -> Any:
        return computing(self.config.precision, self.device)

    def completions(self, latents: Tensor, *, tensors: bool = True) -> "Pictures":
        """Pictures of latents [B, ...]; tensors: whether as these, too, which take four times the
        memory of PIL images."""
        shown: list[Any] = []
        broken: list[Tensor] = []
        images: Tensor | None = None
        for some in latents.split(self.decoded_at_once):
            completions, part = self.adapter.completions(some)
            broken += [part.isnan().flatten(1).any(dim=1)]
            if tensors and images is None:  # filled in place: joining takes twice the memory
                images = part.new_empty(len(latents), *part.shape[1:])
            if images is not None:
                images[len(shown) : len(shown) + len(completions)] = part.nan_to_num()
            shown += completions
        return Pictures(shown, images, torch.cat(broken).cpu())

    def decode(self, latents: Tensor) -> Tensor:
        """Pictures of latents [n, ...] as CPU tensors: there may be more than a device holds."""
        parts = latents.split(self.decoded_at_once)
        return torch.cat([self.adapter.decode(some).float().clamp(0, 1).cpu() for some in parts])

    @property
    def decoded_at_once(self) -> int:
        """The most pictures that are decoded at once."""
        return decoded_at_once(self.adapter, self.config)

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """The context in which velocities are computed in float32, whatever the precision."""
        self._exact = True
        try:
            yield
        finally:
            self._exact = False


@dataclass(frozen=True)
class Pictures:
    """What latents [B, ...] decode to.

    completions: as rewards receive them; images: as tensors [B, ...] in float32, where these are
    wanted; broken: [B] bool, on the CPU, where the decoder gave NaN: there pictures are black.
    """

    completions: list[Any]
    images: Tensor | None
    broken: Tensor


def decoded_at_once(adapter: Adapter, config: Settings) -> int:
    """The most pictures, or videos, of this size that are decoded at once, in sampling as for
    predictions."""
    pixels = adapter.frames * adapter.height * adapter.width
    return max(1, min(config.batch, DECODED // pixels))


def at_evaluation(adapter: Adapter, config: Settings) -> Adapter:
    """The adapter of `evaluation_size`. Raises UserError for an impossible one."""
    size = config.evaluation_size
    if size is None:
        return adapter
    return adapter.resized(size.height, size.width, size.frames, section="policy.evaluation_size")


def check_guidance(adapter: Adapter, config: Settings) -> None:
    """Raise UserError for a guidance scale that would change nothing: any but 1 where the model
    takes none, and below 1 with a second pass, which diffusers' pipelines make above 1 only."""
    for key, scale in {
        "guidance": config.guidance,
        "training_guidance": config.guidance_in_training,
    }.items():
        if scale != 1 and not adapter.takes_guidance():
            raise UserError(
                f"policy.{key}: this model takes no guidance (it is distilled, like "
                f"FLUX.1-schnell); leave it at 1, found {scale:g}"
            )
        if scale < 1 and not adapter.distilled_guidance:
            raise UserError(
                f"policy.{key}: guidance is off at 1, and a smaller scale would change nothing, as "
                f"in diffusers' pipelines; set 1 or more, found {scale:g}"
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
