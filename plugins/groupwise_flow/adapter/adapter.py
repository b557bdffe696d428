"""Adapter: the base class."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self

import torch
from PIL import Image
from torch import Tensor, nn

from groupwise.kit.errors import UserError
from groupwise.kit.section import Section
from groupwise_flow.adapter.conditions import UNCONDITIONAL, Conditions, Row
from groupwise_flow.adapter.limit import Limit
from groupwise_flow.adapter.lora_files import LoraFiles
from groupwise_flow.adapter.noise_levels import NoiseLevels
from groupwise_messages.video import Video


class Adapter(NoiseLevels, LoraFiles, ABC):
    """A diffusers pipeline for pictures of one size, as three functions: encode, velocity, decode.

    Samples are x = (1 - sigma) data + sigma noise, and the velocity is noise - data.

    Config: the adapter's options, keys of `policy.adapter` beside `name`; `self.options` has them.
    pipelines: names of the pipeline classes it is for; any, if empty.
    trained: names of the pipeline's components that are trained, mostly one. `model` is the first.
        Of an instance those that its pipeline has, as `trained_in` says.
    targets: modules that get LoRA adapters unless the configuration names others.
    float32: components that are never stored in half precision.
    encoders: components that nothing but `encode` uses, which may leave the device
        (`policy.encoders`); those that a pipeline lacks are ignored.
    reads: columns of a row that `encode` reads; it gets no others but the mark `UNCONDITIONAL`, and
        encodings are cached by their content.
    by_token: names of conditions [n, tokens, ...] whose number of tokens depends on the prompts.
    distilled_guidance: the model takes the guidance scale as an input (FLUX.1), so guidance needs
        no second pass.
    most_prompt_tokens: the largest `prompt_tokens` that the pipeline's own call accepts; None
        without a limit.
    rows_per_call: the most rows that the pipeline's own call takes; None without a limit.
    encodes_size: whether conditions depend on the size of pictures, which rules out another one at
        evaluation.
    laws: "module:function" that checks an adapter, for `groupwise.testing.check_adapter`.
    """

    class Config(Section):
        """The options of an adapter; none here."""

    pipelines: ClassVar[Sequence[str]] = ()
    trained: Sequence[str] = ("transformer",)
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
    rows_per_call: ClassVar[int | None] = None
    encodes_size: ClassVar[bool] = False
    laws: ClassVar[str] = "groupwise_flow.testing:check_adapter"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if isinstance(cls.trained, str):
            raise TypeError(f"{cls.__name__}.trained: expected a tuple of names, e.g. ('unet',)")

    def __init__(
        self,
        pipeline: Any,
        *,
        height: int | None,
        width: int | None,
        prompt_tokens: int,
        options: Any = None,
        frames: int | None = None,
        frame_rate: float | None = None,
    ) -> None:
        """height, width: in pixels, the pipeline's own if None; options: a `Config`, with defaults
        if None; frames, frame_rate: of videos, frames a second. UserError for impossible sizes.

        The pipeline's scheduler is exchanged as `exchange` says: `own_scheduler` is the one from
        before, `exchanged` what was done, None if nothing.
        """
        self.pipeline, self.prompt_tokens = pipeline, prompt_tokens
        self.options: Any = self.Config() if options is None else options
        if self.most_prompt_tokens is not None and prompt_tokens > self.most_prompt_tokens:
            raise UserError(
                f"policy.prompt_tokens: {type(pipeline).__name__} takes at most "
                f"{self.most_prompt_tokens} (its max_sequence_length), found {prompt_tokens}; "
                f"policy.long_prompts says what happens to longer prompts"
            )
        parts = pipeline.components
        self.trained = self.trained_in([name for name in parts if parts[name] is not None])
        self._resize(height, width)
        self._set_time(frames, frame_rate)
        self.own_scheduler = pipeline.scheduler
        exchanged, own = self.exchange(pipeline.scheduler), pipeline.scheduler
        self.exchanged = None if exchanged is None else exchanged.of(own)
        if self.exchanged is not None:
            pipeline.register_modules(scheduler=self.exchanged.made_of(own))

    def resized(
        self, height: int | None, width: int | None, frames: int | None, *, section: str
    ) -> Self:
        """The same pipeline for another size; None: as here. Raises UserError, with the name of
        this section, for impossible ones and where conditions depend on the size."""
        if self.encodes_size:
            raise UserError(
                f"{section}: the prompts of a {type(self.pipeline).__name__} are encoded with the "
                f"size of the picture, so it is that of training at evaluation, too; leave it out"
            )
        other = copy(self)
        other._resize(height or self.height, width or self.width, section=section)
        if frames is not None:
            other._set_time(frames, getattr(self, "frame_rate", None), section=section)
        return other

    # ---- the models

    @classmethod
    def trained_in(cls, components: Collection[str]) -> Sequence[str]:
        """The names in `trained` of a pipeline with these components: of a model that comes with
        one transformer or two, those that there are."""
        return [name for name in cls.trained if name in components] or cls.trained

    @property
    def models(self) -> Mapping[str, nn.Module]:
        """The components that are trained, by name."""
        return {name: getattr(self.pipeline, name) for name in self.trained}

    @property
    def model(self) -> nn.Module:
        """The first of them, for most adapters the only one."""
        return self.models[self.trained[0]]

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    @abstractmethod
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of one picture's latents as the model takes them, without the batch dimension."""

    @abstractmethod
    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        """The velocity [n, ...] that the models predict for latents [n, ...] at noise levels [n].

        Call `model`, or each of `models`, as a whole, and the same number of times for any rows:
        with `train.shard` weights exist only inside its forward, and each forward is a collective
        of all ranks.

        guidance: scale, for models that take it as an input.
        """

    def activations(self, *, checkpointing: bool) -> float:
        """Activations saved for the backward pass, in numbers per picture, for memory estimates.

        0 to have them counted by running the model without data. State them for a model that cannot
        run so; `activations.of_transformer` estimates those of a usual transformer.
        """
        return 0.0

    # ---- guidance

    def guide(self, conditional: Tensor, unconditional: Tensor, scale: Any) -> Tensor:
        """Classifier-free guidance, arXiv:2207.12598: v = v_u + scale (v_c - v_u), [n, ...].

        scale: a number, or what `scale_at` makes of it.
        """
        guided: Tensor = unconditional + scale * (conditional - unconditional)
        return guided

    def scale_at(self, scale: float, sigma: Tensor) -> float | Tensor:
        """The guidance scale at noise levels [n]: the same at all, or a tensor [n].

        Only a scale above 1 is asked for; which passes there are depends on that alone.
        """
        return scale

    def takes_guidance(self) -> bool:
        """Whether this model supports a guidance scale above 1."""
        return True

    def takes_negative_prompt(self) -> bool:
        """Whether the pipeline's call takes a negative prompt; else the policy refuses one."""
        return not self.distilled_guidance

    def call_guidance(self, scale: float) -> float:
        """The number by which the pipeline's own call has guidance of this scale.

        Ours is off at 1 for every model. Where a pipeline counts otherwise, as Z-Image's, which is
        off at 0, `groupwise check` prints both numbers.
        """
        return scale

    # ---- prompts

    @property
    def tokens(self) -> int:
        """Width that conditions in `by_token` are padded to."""
        return self.prompt_tokens

    @abstractmethod
    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor | None]:
        """Conditions [n, ...] of n rows, by name; None for a condition that there is not.

        Rows have only the columns in `reads`, and `UNCONDITIONAL` if they are for the unconditional
        pass. The shape of a condition must not depend on the rows, except those in `by_token`,
        which may be as wide as the longest prompt. With these return a `mask` [n, tokens], True at
        real tokens (or none if all are). They are padded to `tokens` with zeros, and `velocity`
        must apply the mask, or `Conditions.lengths`, which follow from it.
        """

    def columns(self, row: Row) -> Row:
        """What `encode` gets of a row: the columns in `reads`, and equal ones for rows of one
        encoding."""
        return {name: row[name] for name in self.reads}

    def text(self, row: Row) -> str:
        """The prompt whose length `limit` checks. Raises UserError where it is no text."""
        prompt = row["prompt"]
        if not isinstance(prompt, str):
            raise UserError(f"a prompt for images must be a text, found {str(prompt)[:200]!r}")
        return prompt

    def check_row(self, row: Row) -> None:
        """Raise UserError for a row of the dataset that cannot be encoded, such as one whose
        picture is missing. Called for every row before the first step."""

    def example_row(self) -> Row:
        """A row to encode in estimates of memory, where models have no weights."""
        return {"prompt": "a"}

    def unconditional_row(self, row: Row, negative_prompt: str) -> Row:
        """The row to encode for the unconditional pass of guidance, marked as such."""
        return {**row, "prompt": negative_prompt, UNCONDITIONAL: True}

    def limit(self) -> Limit | None:
        """The longest prompt, and the tokenizer that counts; None without a limit."""
        return None

    # ---- pictures

    @abstractmethod
    def decode(self, latents: Tensor) -> Tensor:
        """Pictures [n, 3, height, width] or frames [n, frames, 3, height, width], in [0, 1] before
        clipping."""

    def tile(self) -> None:
        """Decode in tiles from now on (`policy.tiled_decoding`). Raises UserError where the
        pipeline's autoencoder cannot."""
        vae: Any = getattr(self.pipeline, "vae", None)
        if not hasattr(vae, "enable_tiling"):
            raise UserError(
                f"policy.tiled_decoding: {type(vae).__name__} has no tiles (`enable_tiling`); "
                f"leave it out"
            )
        vae.enable_tiling()

    def completions(self, latents: Tensor) -> tuple[Sequence[Any], Tensor]:
        """What rewards receive for latents [n, ...]: PIL images or `Video`s, and the fact `pixels`
        (float32 in [0, 1]). Where the decoder gives NaN, `pixels` has it and pictures are black."""
        images = self.decode(latents).float().clamp(0, 1)
        pixels = (images.nan_to_num() * 255).round().to(torch.uint8).movedim(-3, -1).cpu().numpy()
        if images.ndim == 5:
            return [self.video(frames) for frames in pixels], images
        return [Image.fromarray(picture) for picture in pixels], images

    def video(self, pixels: Any) -> Video:
        """The video of frames [frames, height, width, 3] uint8."""
        return Video(pixels)

    # ---- the pipeline's own call, for the model card and for tests

    def call_rows(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The call's arguments that come from rows, such as its prompts."""
        return {name: [row[name] for row in rows] for name in self.reads}

    def call_arguments(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        """Arguments with which the pipeline's own call gives the same pictures, beside prompt,
        size, steps and latents."""
        negative = {"negative_prompt": negative_prompt} if negative_prompt else {}
        return {
            "guidance_scale": self.call_guidance(guidance),
            "max_sequence_length": self.prompt_tokens,
            **negative,
        }

    def call_settings(self, *, guidance: float) -> Mapping[str, Mapping[str, Any]]:
        """Settings of components that the call reads in place of arguments, by component: of a
        pipeline whose guidance is a component (HunyuanVideo 1.5). Changed by its `new`."""
        return {}

    @property
    def call_code(self) -> Sequence[str]:
        """Lines of Python before the call, for what it has no argument for. The model card has
        them."""
        return ()

    def call_latents(self, noise: Tensor) -> Tensor:
        """The call's argument `latents` that starts from this noise [n, *latent_shape]."""
        return noise

    def output(self, latents: Tensor) -> Tensor:
        """What the call returns with `output_type="latent"` for these latents [n, ...], for a
        pipeline that rescales them before it decodes (FLUX.2)."""
        return latents
