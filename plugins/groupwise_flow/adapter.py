"""Adapter: what a pipeline's architecture must tell; everything else is the same for all of them.

To teach Groupwise another pipeline, subclass `Adapter` in a file of your own and name it as
`policy.adapter: my_package.my_file:MyAdapter`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from groupwise.errors import UserError
from groupwise_flow.lengths import Limit

Conditions = Mapping[str, Tensor]
"""What a prompt is to the model, by name, each [n, ...]."""


class Adapter(ABC):
    """A diffusers pipeline, for images of one size, seen as encode, velocity and decode.

    targets: names of the modules that get LoRA adapters unless the configuration names others.
    distilled_guidance: the model takes the guidance scale as an input (FLUX.1), so that guidance
        costs no second pass.
    patch: latent pixels along a token's side.
    """

    targets: ClassVar[Sequence[str]]
    distilled_guidance: ClassVar[bool] = False

    def __init__(
        self, pipeline: Any, *, height: int | None, width: int | None, prompt_tokens: int
    ) -> None:
        """height, width: in pixels, the pipeline's own if None. UserError for impossible sizes."""
        self.pipeline, self.prompt_tokens = pipeline, prompt_tokens
        usual = pipeline.default_sample_size * pipeline.vae_scale_factor
        self.height, self.width = height or usual, width or usual
        side = pipeline.vae_scale_factor * self.patch
        if self.height % side or self.width % side:
            raise UserError(
                f"policy.height, policy.width: this model makes images whose sides are multiples "
                f"of {side} pixels, found {self.height} x {self.width}"
            )
        self.rows, self.columns = self.height // side, self.width // side
        if self.most_tokens is not None and max(self.rows, self.columns) > self.most_tokens:
            raise UserError(
                f"policy.height, policy.width: this model makes images of at most "
                f"{self.most_tokens * side} pixels a side, found {self.height} x {self.width}"
            )

    @property
    @abstractmethod
    def patch(self) -> int: ...

    @property
    def most_tokens(self) -> int | None:
        """Tokens along an image's side at the most; None where there is no limit."""
        return None

    @property
    @abstractmethod
    def latent_shape(self) -> tuple[int, ...]:
        """The shape of one image's latents as the model takes them, without the batch."""

    @classmethod
    def limit(cls, parts: Mapping[str, Any], prompt_tokens: int) -> Limit | None:
        """How long a prompt may be and by whose tokens; None for prompts of any length.

        parts: of the pipeline, those of them that it has, the tokenizers at least loaded.
        """
        return None

    @classmethod
    def takes_guidance(cls, config: Mapping[str, Any]) -> bool:
        """Whether a transformer of this configuration can be guided."""
        return True

    @abstractmethod
    def encode(self, prompts: Sequence[str]) -> Conditions:
        """The prompts' conditions, n of each.

        They have one width whatever the prompts. An encoder that pads to the longest of a batch
        gives a `mask` [n, tokens], too, by which `velocity` leaves padding out: it and all
        conditions [n, tokens, ...] of that width are then filled up to `policy.prompt_tokens`.
        """

    @abstractmethod
    def velocity(
        self,
        model: nn.Module,
        latents: Tensor,
        time: Tensor,
        conditions: Conditions,
        *,
        guidance: float,
    ) -> Tensor:
        """The velocity [n, ...] that a transformer tells of latents [n, ...] at times [n].

        time: 1000 sigma; guidance: for models that take it as an input.
        """

    @abstractmethod
    def decode(self, latents: Tensor) -> Tensor:
        """Images [n, 3, height, width], in [0, 1] but for what must be clipped."""

    def sigmas(self, steps: int) -> Tensor:
        """[steps + 1] float32, falling from 1 to 0: the pipeline's own schedule."""
        scheduler = self.pipeline.scheduler
        scheduler.set_timesteps(steps, **self.schedule(steps))
        sigmas = torch.as_tensor(scheduler.sigmas, dtype=torch.float32).cpu()
        if len(sigmas) != steps + 1 or bool((sigmas.diff() >= 0).any()):
            raise UserError(
                f"policy.model: {type(scheduler).__name__} does not give {steps} steps of falling "
                f"noise levels, one pass of the model each; an Euler scheduler is expected"
            )
        return sigmas

    def schedule(self, steps: int) -> dict[str, Any]:
        """Further arguments of the scheduler's `set_timesteps`, as the pipeline gives them."""
        if not self.pipeline.scheduler.config.get("use_dynamic_shifting"):
            return {}
        return {"mu": self.shift(most=1.16)}

    def shift(self, *, most: float) -> float:
        """The schedule's shift, linear in the number of image tokens; most: its default maximum."""
        config = self.pipeline.scheduler.config
        low, high = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
        least, most = config.get("base_shift", 0.5), config.get("max_shift", most)
        slope = (most - least) / (high - low)
        return float(self.rows * self.columns * slope + least - slope * low)

    def rescaled(self, latents: Tensor) -> Tensor:
        """Latents as the autoencoder takes them, by its own scale and shift."""
        config = self.pipeline.vae.config
        shift = 0.0 if config.shift_factor is None else config.shift_factor
        return (latents / config.scaling_factor) + shift
