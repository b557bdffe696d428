"""Memory beside the weights that sampling takes, on the device and in CPU memory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import shorten

import torch
from torch import Tensor, nn

from groupwise.kit.errors import first_line
from groupwise_flow.adapter import MASK, Adapter, Conditions, EditingAdapter
from groupwise_flow.estimates.counting import peak, without_data
from groupwise_flow.files.messages import silent
from groupwise_flow.model.precision import HALF
from groupwise_flow.passes.guidance import PIXELS, decoded_at_once, has_two_branches
from groupwise_flow.settings import Settings

CHANNELS = 3


@dataclass(frozen=True)
class SamplingMemory:
    """What sampling takes, for a pipeline without weights (device meta) behind its adapter.

    Passes are counted by running the models' own code without data.
    """

    adapter: Adapter
    settings: Settings

    def __post_init__(self) -> None:
        for part in self.adapter.pipeline.components.values():
            if isinstance(part, nn.Module):
                part.float()  # configurations may name another dtype

    # ---- sizes of single things, in bytes

    @property
    def _width(self) -> int:
        """Bytes per number of passes and encodings."""
        return HALF.get(self.settings.precision, torch.float32).itemsize

    @property
    def _latent(self) -> int:
        return 4 * math.prod(self.adapter.latent_shape)

    @property
    def _pixels(self) -> int:
        """The numbers of a picture, or of all frames of a video."""
        return CHANNELS * self.adapter.frames * self.adapter.height * self.adapter.width

    @cached_property
    def _conditions(self) -> Mapping[str, Tensor]:
        """The conditions [1, ...] of a prompt that fills its tokens.

        A mask has values, so it is on the CPU: some models read from it how long prompts are.
        """
        with without_data():
            encoded = {n: value for n, value in self._encode().items() if value is not None}
        tokens = self.adapter.tokens
        for name in self.adapter.by_token:
            encoded[name] = encoded[name].new_empty(1, tokens, *encoded[name].shape[2:])
            encoded[MASK] = torch.ones(1, tokens, dtype=torch.bool)
        return encoded

    def _encode(self) -> Mapping[str, Tensor | None]:
        row = self.adapter.example_row()
        with silent():
            return self.adapter.encode([self.adapter.columns(row)])

    @property
    def _encoding(self) -> int:
        """The encoding of a prompt."""
        return self._width * sum(value.numel() for value in self._conditions.values())

    # ---- on the device

    def on_device(self, rollouts: int, encoders: int) -> Mapping[str, int]:
        """Bytes by purpose at the moment of sampling so many rollouts that takes most.

        encoders: bytes of text encoders that are on the device only while they encode.
        """
        try:
            return max(self._moments(rollouts, encoders), key=lambda sizes: sum(sizes.values()))
        except Exception as error:  # code may read values, which these tensors lack
            reason = shorten(first_line(error), 60, placeholder=" ...")
            return {f"sampling: not counted ({reason})": 0}

    def _moments(self, rollouts: int, encoders: int) -> Sequence[Mapping[str, int]]:
        encode = peak(self._encode) * self._width // 4
        encoding = {"text encoders while encoding": encoders, "encoding a prompt": encode}
        batch = {
            "latents while sampling": rollouts
            * (2 + self.settings.sampling_latents)
            * self._latent,
            "encoded prompts of a batch": rollouts * self._encoding,
        }
        together = min(rollouts, self.settings.batch)
        velocity = peak(lambda: self.velocity(together)) * self._width // 4
        some = min(rollouts, decoded_at_once(self.adapter, self.settings))
        pictures = {
            "pictures of a batch": rollouts * 4 * self._pixels * self._tensors(frozenset()),
            "decoding": peak(lambda: self._decode(some)),
        }
        return [encoding, {**batch, "a pass while sampling": velocity}, {**batch, **pictures}]

    def velocity(self, count: int) -> Tensor:
        """A pass of the model for so many pictures."""
        one = self._conditions
        tensors = {name: value.expand(count, *value.shape[1:]) for name, value in one.items()}
        lengths = [self.adapter.tokens] * count if self.adapter.by_token else []
        conditions = Conditions(tensors, lengths)
        latents, sigma = self._empty(count), torch.empty(count, device="meta")
        return self.adapter.velocity(latents, sigma, conditions, guidance=1.0)

    def _decode(self, count: int) -> Tensor:
        return self.adapter.decode(self._empty(count)).float().clamp(0, 1)

    def _empty(self, count: int) -> Tensor:
        return torch.empty(count, *self.adapter.latent_shape, device="meta")

    def _tensors(self, facts: frozenset[str]) -> bool:
        """Whether completions are held as tensors, too: pictures are, and videos where a reward
        takes them."""
        return PIXELS in facts or not self.adapter.is_video

    # ---- in CPU memory

    def _unconditional(self, prompts: int) -> int:
        """Encodings for guidance's unconditional pass: one, but with a picture in it one a row."""
        scales = (self.settings.guidance, self.settings.guidance_in_training)
        reads = isinstance(self.adapter, EditingAdapter) and self.adapter.options.references > 0
        return prompts if reads and has_two_branches(self.adapter, max(scales)) else 1

    def on_cpu(
        self, *, rollouts: int, prompts: int, facts: frozenset[str], references: int
    ) -> Mapping[str, int]:
        """Bytes by purpose; see `Policy.estimate_cpu`."""
        decisions, floats = self.settings.max_decisions, 4 * self._pixels
        sizes = {
            "latents of a step": rollouts * self.settings.stored_latents * self._latent,
            "pictures of a step": rollouts * (self._pixels + floats * self._tensors(facts)),
        }
        if references:
            outputs = rollouts * decisions * self._latent
            sizes["outputs of the reference and other copies"] = references * outputs
        if "predictions" in facts:
            sizes["predictions of a step"] = rollouts * (decisions + 1) * floats
        try:
            kept = min(prompts + self._unconditional(prompts), self.settings.keep_prompts)
            sizes["encoded prompts"] = kept * self._encoding
        except Exception as error:
            reason = shorten(first_line(error), 60, placeholder=" ...")
            sizes[f"encoded prompts: not counted ({reason})"] = 0
        return sizes
