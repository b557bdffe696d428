"""Guided: the transformer that answers, with guidance, in the precision that was asked for."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.errors import UserError
from groupwise_flow.adapter import Adapter, Conditions
from groupwise_flow.encodings import Encodings
from groupwise_flow.precision import InFloat32, computing
from groupwise_flow.settings import Settings


class Guided:
    """Velocities of the trained transformer or of the reference, and what latents look like."""

    def __init__(self, adapter: Adapter, config: Settings) -> None:
        if config.negative_prompt and adapter.distilled_guidance:
            raise UserError(
                "policy.negative_prompt: this model takes guidance as an input and has no "
                "unconditional pass that a negative prompt could change"
            )
        if config.negative_prompt and max(config.guidance, config.guidance_in_training) <= 1:
            raise UserError("policy.negative_prompt: it has no effect without guidance above 1")
        check_guidance(type(adapter), adapter.pipeline.transformer.config, config)
        self.adapter, self.config = adapter, config
        self.limit = adapter.limit(adapter.pipeline.components, config.prompt_tokens)
        self.encodings = Encodings(
            self._encode,
            most=config.keep_prompts,
            width=config.prompt_tokens,
            name=type(adapter).__name__,
        )
        self._negative: Conditions | None = None
        self._exact = False
        self._reference: nn.Module | None = None
        self._instead: nn.Module | None = None

    def _encode(self, prompts: Sequence[str]) -> Conditions:
        """Checked here, too: not every prompt was there to be checked before the run."""
        if self.limit is not None and self.config.long_prompts != "cut":
            self.limit.check(prompts)
        return self.adapter.encode(prompts)

    def _unconditional(self, count: int) -> Conditions:
        """The negative prompt's conditions [n, ...]; on the device for good, as steps need them."""
        if self._negative is None or _device_of(self._negative) != self.device:
            self._negative = self.encodings([self.config.negative_prompt], self.device)
        return {k: v.expand(count, *v.shape[1:]) for k, v in self._negative.items()}

    @property
    def transformer(self) -> nn.Module:
        """The one that is trained, or the one that stands in for it."""
        trained: nn.Module = self.adapter.pipeline.transformer
        return trained if self._instead is None else self._instead

    @property
    def device(self) -> torch.device:
        return next(self.transformer.parameters()).device

    @property
    def version(self) -> int:
        """Changes whenever a trained weight is written to; 0 where none is trained."""
        return sum(p._version for p in self.transformer.parameters() if p.requires_grad)

    def velocity(
        self,
        latents: Tensor,
        sigma: Tensor,
        conditions: Conditions,
        guidance: float,
        unconditional: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The guided velocity [n, ...] in float32, and its unconditional part where there is one.

        latents: [n, ...]; sigma: [n]; unconditional: that part, if it is known. It has no gradient,
        as in the published training.
        """

        def predict(conditions: Conditions) -> Tensor:
            precision = self.config.precision
            with InFloat32() if self._exact else computing(precision, self.device):
                return self.adapter.velocity(
                    self.transformer, latents, 1000 * sigma, conditions, guidance=guidance
                ).float()

        if guidance <= 1 or self.adapter.distilled_guidance:
            return predict(conditions), None
        if unconditional is None:
            with torch.no_grad():
                unconditional = predict(self._unconditional(len(latents)))
        guided = unconditional + guidance * (predict(conditions) - unconditional)
        return guided, unconditional

    def images(self, latents: Tensor) -> Tensor:
        """[B, 3, height, width] float32 in [0, 1], of latents [B, ...]; in float32 always."""
        parts = [self.adapter.decode(some) for some in latents.split(self.config.batch)]
        return torch.cat(parts).float().clamp(0, 1)

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """The same weights answer in float32, whatever the precision."""
        self._exact = True
        try:
            yield
        finally:
            self._exact = False

    def keep_reference(self) -> None:
        """Keep the present weights as the reference; adapters need no copy."""
        if self.config.lora is None:
            self._reference = copy.deepcopy(self.transformer).requires_grad_(False)

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """The kept copy answers, or the transformer with its adapters switched off."""
        transformer = self.adapter.pipeline.transformer
        if self.config.lora is not None:
            transformer.disable_adapters()
            try:
                yield
            finally:
                transformer.enable_adapters()
            return
        if self._reference is None:
            raise RuntimeError("using('reference') before keep('reference')")
        self._instead = self._reference.to(self.device)
        try:
            yield
        finally:
            self._instead = None


def check_guidance(adapter: type[Adapter], model: Mapping[str, Any], config: Settings) -> None:
    """UserError for guidance of a model that takes none; model: its transformer's configuration."""
    for key, scale in {
        "guidance": config.guidance,
        "training_guidance": config.guidance_in_training,
    }.items():
        if scale > 1 and not adapter.takes_guidance(model):
            raise UserError(
                f"policy.{key}: this model was made to need no guidance and takes none "
                f"(`guidance_embeds` of its transformer is false, as FLUX.1-schnell's); leave it "
                f"at 1, found {scale:g}"
            )


def _device_of(conditions: Conditions) -> torch.device:
    return next(iter(conditions.values())).device
