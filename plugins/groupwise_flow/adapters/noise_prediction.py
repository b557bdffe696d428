"""NoisePrediction: diffusion models that predict the noise, or v, as velocities of a flow.

Such a model's sample is z = a data + b noise with a^2 + b^2 = 1. With sigma = b / (a + b) and x = z
divided by a + b, x = (1 - sigma) data + sigma noise is a flow's, and DDIM without noise
(arXiv:2010.02502) is Euler's step. So a = (1 - sigma) / n and b = sigma / n, where n is the norm of
(1 - sigma, sigma), and x = n z.
"""

from typing import Any

import torch
from diffusers import DDIMScheduler, EulerDiscreteScheduler
from pydantic import Field
from torch import Tensor

from groupwise.errors import UserError
from groupwise.section import Section
from groupwise_flow.adapter import Adapter, Exchange

KEPT = (DDIMScheduler, EulerDiscreteScheduler)
"""Schedulers whose steps are Euler's; Euler's samples there are data + k noise, k = b / a."""
WHOLE = 0.01
"""A timestep so close to a whole number, on which these models are trained, is that number."""
LARGEST = 1e7
"""Stands for an infinite k, where a is 0: noise alone."""


class NoisePrediction(Adapter):
    """A U-Net that predicts the noise, or v (arXiv:2202.00512), of a diffusion model."""

    class Config(Section):
        exchange: bool = Field(
            True,
            description="draw pictures by DDIM at the same noise levels where the pipeline's own "
            "scheduler takes other steps than Euler's (PNDM, DPM-Solver++, ancestral ones); if "
            "false such a scheduler is refused",
        )

    options: Any
    trained = ("unet",)
    targets = ("to_q", "to_k", "to_v", "to_out.0")

    def __init__(self, pipeline: Any, **settings: Any) -> None:
        super().__init__(pipeline, **settings)
        self._table: Tensor | None = None
        kind = pipeline.scheduler.config.get("prediction_type")
        if kind not in ("epsilon", "v_prediction"):
            raise UserError(
                f"policy.model: {type(self).__name__} takes models that predict epsilon or "
                f"v_prediction, and the scheduler's prediction_type is {kind}"
            )
        if pipeline.unet.config.get("time_cond_proj_dim") is not None:
            raise UserError(
                "policy.model: its U-Net takes the guidance scale as an input (a latent "
                "consistency model), which this adapter does not give it"
            )
        self.predicts_v = kind == "v_prediction"

    @property
    def default_side(self) -> int:
        size = self.pipeline.unet.config.sample_size
        return int((size if isinstance(size, int) else size[0]) * self.pipeline.vae_scale_factor)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.pipeline.unet.config.in_channels, self.token_rows, self.token_columns)

    # ---- noise levels

    def exchange(self, scheduler: Any) -> Exchange | None:
        """DDIM for a solver of a family that has DDIM's noise levels."""
        if isinstance(scheduler, KEPT) or not self.options.exchange:
            return None
        if type(scheduler).__name__ not in DDIMScheduler._compatibles:
            return None
        changed: dict[str, Any] = {"clip_sample": False}
        # Spaced from first to last, DDIM's own step would not meet the next timestep.
        if scheduler.config.get("timestep_spacing") == "linspace":
            changed["timestep_spacing"] = "trailing"
        return Exchange(DDIMScheduler, changed)

    def sigmas(self, steps: int) -> Tensor:
        scheduler = self.pipeline.scheduler
        if not hasattr(scheduler, "alphas_cumprod"):
            raise AttributeError("no alphas_cumprod")
        scheduler.set_timesteps(steps)
        if isinstance(scheduler, EulerDiscreteScheduler):
            k = torch.as_tensor(scheduler.sigmas).double()
            return k / (1 + k)
        levels = _sigma(scheduler.alphas_cumprod)[scheduler.timesteps.cpu()]
        return torch.cat([levels, _sigma(scheduler.final_alpha_cumprod).view(1)])

    def last_sigma(self) -> float:
        """Above 0 for DDIM with `set_alpha_to_one: false`, the configuration of these models."""
        scheduler = self.pipeline.scheduler
        if isinstance(scheduler, EulerDiscreteScheduler):
            return float(scheduler.sigmas[-1] / (1 + scheduler.sigmas[-1]))
        return float(_sigma(scheduler.final_alpha_cumprod))

    def timestep(self, sigma: Tensor) -> Tensor:
        """[n] between those of the table linear in k, as Euler's scheduler interpolates."""
        if self._table is None or self._table.device != sigma.device:
            levels = _sigma(self.pipeline.scheduler.alphas_cumprod)
            self._table = _k(levels).float().to(sigma.device)
        k = _k(sigma)
        index = torch.searchsorted(self._table, k).clamp(1, len(self._table) - 1)
        low, high = self._table[index - 1], self._table[index]
        time = index - 1 + (k - low) / (high - low)
        return torch.where((time - time.round()).abs() < WHOLE, time.round(), time)

    def noise_scale(self, steps: int) -> float:
        first = float(self.sigmas(steps)[0])
        return float(self.pipeline.scheduler.init_noise_sigma) * self._unit(first)

    def data_scale(self) -> float:
        """Below 1 where the last level is above 0: the pipeline decodes z as it is there."""
        return self._unit(self.last_sigma())

    def is_comparable(self, sigmas: Tensor) -> bool:
        return True

    def own_step(
        self, scheduler: Any, velocity: Tensor, sample: Tensor, number: int, sigmas: Tensor
    ) -> Tensor:
        sigma, after = float(sigmas[number]), float(sigmas[number + 1])
        predicted = sample + (1 - sigma) * velocity
        if self.predicts_v:
            n = _norm(sigma)
            predicted = n * velocity - (2 * sigma - 1) / n * sample
        time, own = scheduler.timesteps[number], sample / self._unit(sigma)
        scheduler.scale_model_input(own, time)
        moved: Tensor = scheduler.step(predicted, time, own, return_dict=False)[0]
        return moved * self._unit(after)

    def _unit(self, sigma: float) -> float:
        """Our sample is the scheduler's times this number."""
        return (
            1 - sigma
            if isinstance(self.pipeline.scheduler, EulerDiscreteScheduler)
            else _norm(sigma)
        )

    # ---- passes

    def from_prediction(self, predicted: Tensor, latents: Tensor, sigma: Tensor) -> Tensor:
        """The velocity [n, ...] for the model's output at latents [n, ...] and levels [n]."""
        predicted, s = predicted.float(), sigma.view(-1, *[1] * (latents.ndim - 1))
        if not self.predicts_v:
            return (predicted - latents) / (1 - s)
        n = torch.hypot(1 - s, s)
        return (predicted + (2 * s - 1) / n * latents) / n

    def model_input(self, latents: Tensor, sigma: Tensor) -> Tensor:
        """z [n, ...] of latents [n, ...] at levels [n]."""
        return latents / torch.hypot(1 - sigma, sigma).view(-1, *[1] * (latents.ndim - 1))

    # ---- pictures

    def decode(self, latents: Tensor) -> Tensor:
        vae = self.pipeline.vae
        images: Tensor = vae.decode(latents / vae.config.scaling_factor, return_dict=False)[0]
        return images / 2 + 0.5


def _sigma(alphas_cumprod: Any) -> Tensor:
    """Levels in float64 of a^2 = `alphas_cumprod`."""
    squared = torch.as_tensor(alphas_cumprod).cpu().double()
    a, b = squared.sqrt(), (1 - squared).sqrt()
    return b / (a + b)


def _k(sigma: Tensor) -> Tensor:
    """b / a at levels [n]."""
    return (sigma / (1 - sigma)).clamp(max=LARGEST)


def _norm(sigma: float) -> float:
    """The length n of (1 - sigma, sigma)."""
    return float(torch.tensor([1 - sigma, sigma], dtype=torch.float64).norm())
