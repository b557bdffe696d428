"""Guided: the transformer that answers, with guidance, in the precision that was asked for."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.errors import UserError
from groupwise_flow.adapter import Adapter, Conditions
from groupwise_flow.encodings import Encodings
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
        self.adapter, self.config = adapter, config
        self.encodings = Encodings(self._encode, most=config.keep_prompts)
        self._reference: nn.Module | None = None
        self._instead: nn.Module | None = None

    def _encode(self, prompts: Sequence[str]) -> Conditions:
        """Checked here, too: not every prompt was there to be checked before the run."""
        self.adapter.check_prompts(prompts)
        return self.adapter.encode(prompts)

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
            with self._autocast():
                return self.adapter.velocity(
                    self.transformer, latents, 1000 * sigma, conditions, guidance=guidance
                ).float()

        if guidance <= 1 or self.adapter.distilled_guidance:
            return predict(conditions), None
        if unconditional is None:
            with torch.no_grad():
                empty = self.encodings([self.config.negative_prompt], self.device)
                unconditional = predict(
                    {k: v.expand(len(latents), *v.shape[1:]) for k, v in empty.items()}
                )
        guided = unconditional + guidance * (predict(conditions) - unconditional)
        return guided, unconditional

    def images(self, latents: Tensor) -> Tensor:
        """[B, 3, height, width] float32 in [0, 1], of latents [B, ...]."""
        with self._autocast():
            parts = [self.adapter.decode(some) for some in latents.split(self.config.batch)]
        return torch.cat(parts).float().clamp(0, 1)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

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
