"""Wan 2.1 and 2.2, text to video."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.utils.import_utils import is_ftfy_available
from pydantic import Field
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from groupwise.kit.errors import UserError
from groupwise.kit.section import Section
from groupwise_flow.adapter import (
    Conditions,
    Exchange,
    Limit,
    LoraWeights,
    Row,
    VideoAdapter,
)
from groupwise_flow.adapter.lora_files import file_of, write_lora
from groupwise_flow.model.sharding import largest

HIGH, LOW = "transformer", "transformer_2"
"""The transformers of high and of low noise levels."""


class WanAdapter(VideoAdapter):
    """Wan 2.1 and 2.2.

    Of the two transformers of Wan 2.2 A14B one runs at levels from the pipeline's `boundary_ratio`
    on, the other below it. Wan 2.2 5B has one, which takes a time for each token.
    """

    class Config(Section):
        """The options of Wan's adapter."""

        guidance_2: float | None = Field(
            None,
            gt=0,
            description="guidance scale of the transformer of low noise levels, in training and "
            "at evaluation (the pipeline's `guidance_scale_2`); as of the other one if unset",
        )

        shift: float | None = Field(
            None,
            gt=0,
            description="shift of the noise levels, in training and at evaluation; that of the "
            "folder's scheduler if unset",
        )

    pipelines = ("WanPipeline",)
    trained = (HIGH, LOW)
    targets = tuple(
        f"attn{number}.{name}" for number in (1, 2) for name in ("to_q", "to_k", "to_v", "to_out.0")
    )
    most_prompt_tokens = 512
    default_frames, default_rate = 81, 16.0

    def __init__(self, pipeline: Any, **sizes: Any) -> None:
        super().__init__(pipeline, **sizes)
        if self.options.guidance_2 is not None and len(self.trained) == 1:
            raise UserError(
                "policy.adapter.guidance_2: this model has one transformer for all noise levels; "
                "set policy.guidance alone"
            )
        if not is_ftfy_available():
            raise UserError(
                "policy.model: diffusers' WanPipeline cleans prompts by ftfy; pip install ftfy"
            )

    # ---- sizes

    @property
    def _config(self) -> Any:
        return self.model.config

    @property
    def patch(self) -> int:
        return int(self._config.patch_size[1])

    @property
    def token_side(self) -> int:
        return int(self.pipeline.vae_scale_factor_spatial) * self.patch

    @property
    def default_size(self) -> tuple[int, int]:
        return 480, 832

    @property
    def frame_step(self) -> int:
        return int(self.pipeline.vae_scale_factor_temporal)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self._config.in_channels, self.latent_frames, *self.latent_sides)

    # ---- noise levels

    def exchange(self, scheduler: Any) -> Exchange | None:
        """The folders of Wan hold UniPC, of second order: Euler's steps at its shift."""
        own, shift = scheduler.config, self.options.shift
        if own.get("use_flow_sigmas") and shift is None:
            shift = own.get("flow_shift")
        if shift is None:
            return None
        return Exchange(FlowMatchEulerDiscreteScheduler, {"shift": shift})

    # ---- prompts

    def limit(self) -> Limit:
        return Limit(self.pipeline.tokenizer, self.prompt_tokens)

    def encode(self, rows: Sequence[Row]) -> Mapping[str, Tensor]:
        """As in the pipeline: padding is zero, and the model reads it."""
        embeds, _ = self.pipeline.encode_prompt(
            [row["prompt"] for row in rows],
            do_classifier_free_guidance=False,
            max_sequence_length=self.prompt_tokens,
            device=self.device,
        )
        return {"embeds": embeds}

    # ---- passes

    @property
    def boundary(self) -> float:
        """The least noise level of the first transformer; 0 where there is one alone."""
        ratio = self.pipeline.config.boundary_ratio
        return 0.0 if ratio is None or len(self.trained) == 1 else float(ratio)

    def is_high(self, sigma: Tensor) -> Tensor:
        """[n] bool: the levels of the first transformer, compared as the pipeline's timesteps."""
        return self.timestep(sigma) >= self.timestep(torch.full_like(sigma, self.boundary))

    def velocity(
        self, latents: Tensor, sigma: Tensor, conditions: Conditions, *, guidance: float
    ) -> Tensor:
        inputs = (latents, sigma, conditions["embeds"])
        if not self.boundary or sigma.is_meta:  # without data there are no levels; both are alike
            return self._pass(self.model, *inputs)
        high = self.is_high(sigma).tolist()
        rows = {HIGH: [n for n, is_high in enumerate(high) if is_high]}
        rows[LOW] = [n for n, is_high in enumerate(high) if not is_high]
        # Each forward of a sharded model is a collective: processes without rows run it, too.
        counts = largest([*map(len, rows.values())], _mesh(self.model))
        needed = [name for name, count in zip(rows, counts, strict=True) if count]
        if len(needed) == 1:
            return self._pass(self.models[needed[0]], *inputs)
        parts: list[Tensor] = []
        unused: Tensor | float = 0.0
        for name in needed:
            some = torch.tensor(rows[name] or [0]).to(latents.device)
            part = self._pass(self.models[name], *(each[some] for each in inputs))
            if rows[name]:
                parts.append(part)
            else:  # in the graph, so that each process has as many backward passes
                unused = 0.0 * part.sum()
        places = torch.tensor([*rows[HIGH], *rows[LOW]]).argsort().to(latents.device)
        return torch.cat(parts)[places] + unused

    def _pass(self, model: nn.Module, latents: Tensor, sigma: Tensor, embeds: Tensor) -> Tensor:
        time = self.timestep(sigma)
        if self.pipeline.config.expand_timesteps:
            time = time.unsqueeze(1).expand(-1, self.video_tokens)
        velocity: Tensor = model(
            hidden_states=latents, timestep=time, encoder_hidden_states=embeds, return_dict=False
        )[0]
        return velocity

    def scale_at(self, scale: float, sigma: Tensor) -> float | Tensor:
        second = self.options.guidance_2
        if second is None or not self.boundary:
            return scale
        return torch.where(self.is_high(sigma), scale, second)

    # ---- videos

    def decode(self, latents: Tensor) -> Tensor:
        """In float32, scaled by a mean and a std for each channel."""
        vae = self.pipeline.vae
        mean, std = (
            torch.tensor(numbers).view(-1, 1, 1, 1).to(latents)
            for numbers in (vae.config.latents_mean, vae.config.latents_std)
        )
        videos: Tensor = vae.decode(latents * std + mean, return_dict=False)[0]
        return videos.transpose(1, 2) / 2 + 0.5

    # ---- the pipeline's own call, and saved weights

    def call_arguments(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        own = super().call_arguments(guidance=guidance, negative_prompt=negative_prompt)
        second = self.options.guidance_2
        return own if second is None else {**own, "guidance_scale_2": second}

    def save_lora(self, folder: Path, weights: Mapping[str, LoraWeights]) -> None:
        """diffusers reads a file for each transformer, both with names as of the first."""
        for name, each in weights.items():
            write_lora(folder, self._file(name), each, prefix=HIGH)

    @property
    def lora_code(self) -> Sequence[str]:
        second = {LOW: ", load_into_transformer_2=True"}
        return [
            f'pipeline.load_lora_weights("{{path}}", weight_name="{self._file(name)}"'
            f"{second.get(name, '')})"
            for name in self.trained
        ]

    def _file(self, name: str) -> str:
        return file_of(name) if name == LOW else "pytorch_lora_weights.safetensors"


def _mesh(model: nn.Module) -> DeviceMesh | None:
    """Of the processes that a model is divided among; None if it is whole."""
    weight = next(model.parameters())
    return weight.device_mesh if isinstance(weight, DTensor) else None
