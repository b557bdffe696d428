"""Adapter: all code that depends on a pipeline's architecture.

To train another diffusers pipeline, subclass `Adapter` in a package of your own; register it under
the name of the pipeline's class (`register_adapters`), or set `policy.adapter`. `Limit` and
`Frames` are what its methods `limit` and `completions` return.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn

from groupwise.errors import UserError

Row = Mapping[str, Any]
"""A row of the dataset."""

Conditions = Mapping[str, Tensor]
"""The model's inputs that encode n rows (text embeddings and the like), by name, each [n, ...]."""

MASK = "mask"

TOKENIZED_AT_ONCE = 1024


@dataclass(frozen=True)
class Limit:
    """At most `most` tokens of this tokenizer; setting: source of the limit, for messages."""

    tokenizer: Any
    most: int
    setting: str = "policy.prompt_tokens"

    def too_long(self, prompts: Sequence[str]) -> dict[str, int]:
        """The prompts that are too long, with their numbers of tokens."""
        lengths: dict[str, int] = {}
        for start in range(0, len(prompts), TOKENIZED_AT_ONCE):
            some = list(prompts[start : start + TOKENIZED_AT_ONCE])
            # Not verbose: else the tokenizer prints its own warning about long texts.
            for prompt, ids in zip(
                some, self.tokenizer(some, verbose=False).input_ids, strict=True
            ):
                if len(ids) > self.most:
                    lengths[prompt] = len(ids)
        return lengths

    def check(self, prompts: Sequence[str]) -> None:
        """Raise UserError for a prompt that is too long."""
        for prompt, length in self.too_long(prompts).items():
            raise UserError(
                f"a prompt has {length} tokens, and {self.setting} allows {self.most}: "
                f"{prompt[:200]!r}; set policy.long_prompts: skip to leave out such prompts, or "
                f"cut to cut off their end"
            )


class Frames(list[Image.Image]):
    """A video's frames as PIL images, in order, all of one size."""

    def save(self, path: Path, milliseconds: int = 125) -> None:
        """Save as animated PNG, which browsers show; milliseconds: duration of one frame."""
        first, *others = self
        first.save(path, save_all=True, append_images=others, duration=milliseconds)


class Adapter(ABC):
    """A diffusers pipeline for pictures of one size, as three functions: encode, velocity, decode.

    Samples are x = (1 - sigma) data + sigma noise, and the velocity is noise - data.

    pipelines: names of the pipeline classes it is for; any, if empty.
    trained: name of the pipeline's component that is trained.
    targets: modules that get LoRA adapters unless the configuration names others.
    float32: components that are never stored in half precision.
    encoders: components that nothing but `encode` uses, which may leave the device
        (`policy.encoders`); those that a pipeline lacks are ignored.
    reads: columns of a row that `encode` reads; it gets no others, and encodings are cached by
        their content.
    by_token: names of conditions [n, tokens, ...] whose number of tokens depends on the prompts.
    distilled_guidance: the model takes the guidance scale as an input (FLUX.1), so guidance needs
        no second pass.
    most_prompt_tokens: the largest `prompt_tokens` that the pipeline's own call accepts; None
        without a limit.
    patch: latent pixels along a token's side.
    laws: "module:function" that checks an adapter, for `groupwise.testing.check_adapter`.
    """

    pipelines: ClassVar[Sequence[str]] = ()
    trained: ClassVar[str] = "transformer"
    targets: ClassVar[Sequence[str]] = ()
    float32: ClassVar[Sequence[str]] = ("vae",)
    encoders: ClassVar[Sequence[str]] = (
        *("text_encoder", "text_encoder_2", "text_encoder_3"),
        "image_encoder",
    )
    reads: ClassVar[Sequence[str]] = ("prompt",)
    by_token: ClassVar[Sequence[str]] = ()
    distilled_guidance: ClassVar[bool] = False
    most_prompt_tokens: ClassVar[int | None] = None
    laws: ClassVar[str] = "groupwise_flow.testing:check_adapter"

    def __init__(
        self, pipeline: Any, *, height: int | None, width: int | None, prompt_tokens: int
    ) -> None:
        """height, width: in pixels, the pipeline's own if None. UserError for impossible sizes."""
        self.pipeline, self.prompt_tokens = pipeline, prompt_tokens
        if self.most_prompt_tokens is not None and prompt_tokens > self.most_prompt_tokens:
            raise UserError(
                f"policy.prompt_tokens: {type(pipeline).__name__} takes at most "
                f"{self.most_prompt_tokens} (its max_sequence_length), found {prompt_tokens}; "
                f"policy.long_prompts says what happens to longer prompts"
            )
        self.height, self.width = height or self.default_side, width or self.default_side
        side = self.token_side
        if self.height % side or self.width % side:
            raise UserError(
                f"policy.height, policy.width: this model's images have sides that are multiples "
                f"of {side} pixels, found {self.height} x {self.width}"
            )
        self.token_rows, self.token_columns = self.height // side, self.width // side
        most = self.most_tokens
        if most is not None and max(self.token_rows, self.token_columns) > most:
            raise UserError(
                f"policy.height, policy.width: this model's images have at most {most * side} "
                f"pixels a side, found {self.height} x {self.width}"
            )

    # ---- sizes

    @property
    def patch(self) -> int:
        return 1

    @property
    def token_side(self) -> int:
        """Pixels along a token's side."""
        return int(self.pipeline.vae_scale_factor) * self.patch

    @property
    def default_side(self) -> int:
        """Pixels along a picture's side where the configuration sets none."""
        return int(self.pipeline.default_sample_size * self.pipeline.vae_scale_factor)

    @property
    def most_tokens(self) -> int | None:
        """Most tokens along a picture's side; None without a limit."""
        return None

    @property
    @abstractmethod
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of one picture's latents as the model takes them, without the batch dimension."""

    # ---- the model

    @property
    def model(self) -> nn.Module:
        """The component that is trained."""
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
        """The velocity [n, ...] that the model predicts for latents [n, ...] at noise levels [n].

        Call the model as a whole, and the same number of times for any rows: with `train.shard`
        weights exist only inside its forward, and each forward is a collective of all ranks.

        guidance: scale, for models that take it as an input.
        """

    def guide(self, conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
        """Classifier-free guidance, arXiv:2207.12598: v = v_u + scale (v_c - v_u), [n, ...]."""
        return unconditional + scale * (conditional - unconditional)

    def takes_guidance(self) -> bool:
        """Whether this model supports a guidance scale above 1."""
        return True

    def activations(self, *, checkpointing: bool) -> float:
        """Activations saved for the backward pass, in numbers per picture, for memory estimates.

        0 if unknown; `activations.of_transformer` estimates those of a usual transformer.
        """
        return 0.0

    # ---- prompts

    @property
    def tokens(self) -> int:
        """Width that conditions in `by_token` are padded to."""
        return self.prompt_tokens

    @abstractmethod
    def encode(self, rows: Sequence[Row]) -> Conditions:
        """Conditions of n rows, which have only the columns in `reads`.

        The shape of a condition must not depend on the rows, except those in `by_token`, which may
        be as wide as the longest prompt. With these return a `mask` [n, tokens], True at real
        tokens (or none if all are). They are padded to `tokens` with zeros, and `velocity` must
        apply the mask.
        """

    def text(self, row: Row) -> str:
        """The prompt whose length `limit` checks. Raises UserError where it is no text."""
        prompt = row["prompt"]
        if not isinstance(prompt, str):
            raise UserError(f"a prompt for images must be a text, found {str(prompt)[:200]!r}")
        return prompt

    def unconditional_row(self, row: Row, negative_prompt: str) -> Row:
        """The row to encode for the unconditional pass of guidance."""
        return {**row, "prompt": negative_prompt}

    def limit(self) -> Limit | None:
        """The longest prompt, and the tokenizer that counts; None without a limit."""
        return None

    # ---- noise levels

    def sigmas(self, steps: int) -> Tensor:
        """[steps + 1] noise levels, falling from at most 1 to 0: the pipeline's own schedule."""
        scheduler = self.pipeline.scheduler
        scheduler.set_timesteps(steps, **self.schedule(steps))
        return torch.as_tensor(scheduler.sigmas)

    def schedule(self, steps: int) -> dict[str, Any]:
        """Further arguments of the scheduler's `set_timesteps`, as the pipeline passes them."""
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
        return self.token_rows * self.token_columns

    def timestep(self, sigma: Tensor) -> Tensor:
        """The scheduler's timesteps at noise levels [n]: sigma times `num_train_timesteps`."""
        return sigma * self.pipeline.scheduler.config.get("num_train_timesteps", 1000)

    def noise_scale(self, steps: int) -> float:
        """The first sample, at `sigmas[0]`, is standard normal noise times this scale."""
        return 1.0

    # ---- pictures

    @abstractmethod
    def decode(self, latents: Tensor) -> Tensor:
        """Pictures [n, 3, height, width] or frames [n, frames, 3, height, width], in [0, 1] before
        clipping."""

    def completions(self, latents: Tensor) -> tuple[Sequence[Any], Tensor]:
        """What rewards receive for latents [n, ...]: PIL images or `Frames`, and the fact `images`
        (float32 in [0, 1]). Where the decoder gives NaN, `images` has it and pictures are black."""
        images = self.decode(latents).float().clamp(0, 1)
        pixels = (images.nan_to_num() * 255).round().to(torch.uint8).movedim(-3, -1).cpu().numpy()
        if images.ndim == 5:
            return [Frames(Image.fromarray(frame) for frame in frames) for frames in pixels], images
        return [Image.fromarray(picture) for picture in pixels], images

    def call_arguments(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        """Arguments with which the pipeline's own call gives the same pictures, beside prompt,
        size, steps and latents; for the model card and for tests."""
        negative = {"negative_prompt": negative_prompt} if negative_prompt else {}
        return {"guidance_scale": guidance, "max_sequence_length": self.prompt_tokens, **negative}
