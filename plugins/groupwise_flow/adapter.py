"""Adapter: what a pipeline's architecture must tell; everything else is the same for all of them.

To teach Groupwise another pipeline, subclass `Adapter` in a package of your own, and register it by
the name of the pipeline's class (`register_adapters`) or name it as `policy.adapter`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn

from groupwise.errors import UserError
from groupwise_flow.frames import Frames
from groupwise_flow.lengths import Limit

Row = Mapping[str, Any]
"""A row of the dataset."""

Conditions = Mapping[str, Tensor]
"""What rows are to the model, by name, each [n, ...]."""

MASK = "mask"


class Adapter(ABC):
    """A diffusers pipeline, for pictures of one size, seen as encode, velocity and decode.

    Samples are x = (1 - sigma) data + sigma noise, and the velocity is noise - data.

    pipelines: the names of the classes of pipelines it is for; of any, if empty.
    trained: the name of the pipeline's part that is trained.
    targets: names of the modules that get LoRA adapters unless the configuration names others.
    float32: parts that are never stored in half precision.
    reads: the columns of a row that `encode` reads. It is given no others, and conditions are kept
        by all that is in them.
    by_token: names of conditions [n, tokens, ...] whose number of tokens depends on the prompts.
    distilled_guidance: the model takes the guidance scale as an input (FLUX.1), so that guidance
        costs no second pass.
    patch: latent pixels along a token's side.
    """

    pipelines: ClassVar[Sequence[str]] = ()
    trained: ClassVar[str] = "transformer"
    targets: ClassVar[Sequence[str]] = ()
    float32: ClassVar[Sequence[str]] = ("vae",)
    reads: ClassVar[Sequence[str]] = ("prompt",)
    by_token: ClassVar[Sequence[str]] = ()
    distilled_guidance: ClassVar[bool] = False

    def __init__(
        self, pipeline: Any, *, height: int | None, width: int | None, prompt_tokens: int
    ) -> None:
        """height, width: in pixels, the pipeline's own if None. UserError for impossible sizes."""
        self.pipeline, self.prompt_tokens = pipeline, prompt_tokens
        self.height, self.width = height or self.usual, width or self.usual
        side = self.side
        if self.height % side or self.width % side:
            raise UserError(
                f"policy.height, policy.width: this model makes images whose sides are multiples "
                f"of {side} pixels, found {self.height} x {self.width}"
            )
        self.down, self.across = self.height // side, self.width // side
        most = self.most_tokens
        if most is not None and max(self.down, self.across) > most:
            raise UserError(
                f"policy.height, policy.width: this model makes images of at most "
                f"{most * side} pixels a side, found {self.height} x {self.width}"
            )

    # ---- sizes

    @property
    def patch(self) -> int:
        return 1

    @property
    def side(self) -> int:
        """Pixels along a token's side."""
        return int(self.pipeline.vae_scale_factor) * self.patch

    @property
    def usual(self) -> int:
        """Pixels along a picture's side where the configuration sets none."""
        return int(self.pipeline.default_sample_size * self.pipeline.vae_scale_factor)

    @property
    def most_tokens(self) -> int | None:
        """Tokens along a picture's side at the most; None where there is no limit."""
        return None

    @property
    @abstractmethod
    def latent_shape(self) -> tuple[int, ...]:
        """The shape of one picture's latents as the model takes them, without the batch."""

    # ---- the model

    @property
    def model(self) -> nn.Module:
        """The part that is trained."""
        part: nn.Module = getattr(self.pipeline, self.trained)
        return part

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @abstractmethod
    def velocity(
        self,
        model: nn.Module,
        latents: Tensor,
        sigma: Tensor,
        conditions: Conditions,
        *,
        guidance: float,
    ) -> Tensor:
        """The velocity [n, ...] that the model tells of latents [n, ...] at noise levels [n].

        The model is called as a whole, and as often whatever the rows: with `train.shard` its
        weights are there inside its own forward alone, and each call waits for all processes.

        guidance: for models that take it as an input.
        """

    def guide(self, conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
        """The velocity [n, ...] of two of them: classifier-free guidance, arXiv:2207.12598."""
        return unconditional + scale * (conditional - unconditional)

    def takes_guidance(self) -> bool:
        """Whether this model can be guided."""
        return True

    def activations(self, *, checkpointing: bool) -> float:
        """How many numbers a pass of one picture keeps for the backward pass, for estimates.

        0 where nobody knows; `activations.of_transformer` counts those of a usual transformer.
        """
        return 0.0

    # ---- prompts

    @property
    def tokens(self) -> int:
        """What conditions `by_token` are filled up to."""
        return self.prompt_tokens

    @abstractmethod
    def encode(self, rows: Sequence[Row]) -> Conditions:
        """Conditions of n rows, which hold what `reads` names and no more.

        All have one shape whatever the rows. Only those named in `by_token` may be as wide as the
        longest prompt of these rows; with them comes a `mask` [n, tokens], True at real tokens, or
        none where all are. They and the mask are filled up with zeros to `tokens`, and `velocity`
        must leave out what the mask leaves out.
        """

    def text(self, row: Row) -> str:
        """The prompt whose length `limit` is about; UserError where it is no text."""
        prompt = row["prompt"]
        if not isinstance(prompt, str):
            raise UserError(f"a prompt for images must be a text, found {str(prompt)[:200]!r}")
        return prompt

    def without(self, row: Row, negative_prompt: str) -> Row:
        """The row that the unconditional pass is given in place of this one."""
        return {**row, "prompt": negative_prompt}

    def limit(self) -> Limit | None:
        """How long a prompt may be and by whose tokens; None for prompts of any length."""
        return None

    # ---- noise levels

    def sigmas(self, steps: int) -> Tensor:
        """[steps + 1], falling to 0 from 1 at the most: the pipeline's own schedule."""
        scheduler = self.pipeline.scheduler
        scheduler.set_timesteps(steps, **self.schedule(steps))
        return torch.as_tensor(scheduler.sigmas)

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
        return float(self.image_tokens * slope + least - slope * low)

    @property
    def image_tokens(self) -> int:
        return self.down * self.across

    def noise_scale(self, steps: int) -> float:
        """What standard normal noise is multiplied by to be the first sample, at `sigmas[0]`."""
        return 1.0

    # ---- pictures

    @abstractmethod
    def decode(self, latents: Tensor) -> Tensor:
        """Pictures [n, 3, height, width] or frames [n, frames, 3, height, width], in [0, 1] but
        for what must be clipped."""

    def completions(self, latents: Tensor) -> tuple[Sequence[Any], Tensor]:
        """What rewards see of latents [n, ...], and as float32 in [0, 1], their fact `images`."""
        images = self.decode(latents).float().clamp(0, 1)
        pixels = (images * 255).round().to(torch.uint8).movedim(-3, -1).cpu().numpy()
        if images.ndim == 5:
            return [Frames(Image.fromarray(frame) for frame in frames) for frames in pixels], images
        return [Image.fromarray(picture) for picture in pixels], images

    def call(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        """Arguments of the pipeline's own call that draws what we draw, beside prompt, size, steps
        and latents; for the card of what is saved, and for tests."""
        negative = {"negative_prompt": negative_prompt} if negative_prompt else {}
        return {"guidance_scale": guidance, "max_sequence_length": self.prompt_tokens, **negative}

    @classmethod
    def check(cls, pipeline: Any, **options: Any) -> None:
        """The laws of adapters, for `groupwise.testing.check_adapter`; options: of `laws.check`."""
        from groupwise_flow import laws

        laws.check(cls, pipeline, **options)
