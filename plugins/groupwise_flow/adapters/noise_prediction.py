"""NoisePrediction: diffusion models that predict the noise, or v, as velocities of a flow.

Such a model's sample is z = a data + b noise with a^2 + b^2 = 1. With sigma = b / (a + b) and x = z
divided by a + b, x = (1 - sigma) data + sigma noise is a flow's, and DDIM without noise
(arXiv:2010.02502) is Euler's step. So a = (1 - sigma) / n and b = sigma / n, where n is the norm of
(1 - sigma, sigma), and x = n z.
"""

from typing import Any

import torch
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler
from pydantic import Field
from torch import Tensor

from groupwise.kit.errors import UserError
from groupwise.kit.section import Section
from groupwise_flow.adapter import Adapter, Exchange
from groupwise_flow.adapter.noise_levels import ROUNDING
from groupwise_flow.adapters.first_order import FIRST_ORDER, is_first_order

SPACED = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")
"""Settings by which levels are spaced between the first and the last one of the table."""
SMALLEST_LAST = {"final_sigmas_type": "sigma_min"}
"""Pictures are decoded at the smallest level of the table, not at 0."""
WHOLE = 0.01
"""A timestep so close to a whole number, on which these models are trained, is that number."""
LARGEST = 1e7
"""Stands for an infinite k, where a is 0: noise alone."""


class NoisePrediction(Adapter):
    """A U-Net that predicts the noise, or v (arXiv:2202.00512), of a diffusion model."""

    class Config(Section):
        exchange: bool = Field(
            True,
            description="draw pictures by Euler's steps at the noise levels of the pipeline's own "
            "scheduler where that takes other steps (PNDM, DPM-Solver++, ancestral ones); if false "
            "such a scheduler is refused",
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
        if pipeline.scheduler.config.get("use_flow_sigmas"):
            raise UserError(
                f"policy.model: use_flow_sigmas is for models that predict a flow's velocity, and "
                f"this one predicts {kind}; set it to false in scheduler/scheduler_config.json"
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
        """A scheduler with Euler's steps at the noise levels of a solver of another kind."""
        is_kept = isinstance(scheduler, DDIMScheduler | EulerDiscreteScheduler)
        if is_kept or is_first_order(scheduler) or not self.options.exchange:
            return None
        is_known = type(scheduler).__name__ in DDIMScheduler._compatibles
        return _with_eulers_steps(scheduler) if is_known else None

    def sigmas(self, steps: int) -> Tensor:
        sigmas = super().sigmas(steps)
        if not self.predicts_v and float(sigmas[0]) > 1 - ROUNDING:
            raise UserError(
                "policy.model: it predicts epsilon, and its first sample is noise alone (terminal "
                "SNR 0), of which epsilon says nothing: every picture would be NaN; expected a "
                "model that predicts v, or rescale_betas_zero_snr: false in "
                "scheduler/scheduler_config.json"
            )
        return sigmas

    def levels_of(self, scheduler: Any, steps: int) -> Tensor:
        """Of a solver with several passes a step its distinct levels."""
        if not hasattr(scheduler, "alphas_cumprod"):
            raise AttributeError("no alphas_cumprod")
        scheduler.set_timesteps(steps)
        if hasattr(scheduler, "sigmas"):
            k = torch.as_tensor(scheduler.sigmas).double()
            levels = k / (1 + k)
        else:
            table = _sigma(scheduler.alphas_cumprod)[scheduler.timesteps.long().cpu()]
            last = _sigma(getattr(scheduler, "final_alpha_cumprod", 1.0))
            levels = torch.cat([table, last.view(1)])
        return levels.unique_consecutive()

    def last_sigma(self) -> float:
        """Above 0 for DDIM with `set_alpha_to_one: false`, the configuration of these models."""
        scheduler = self.pipeline.scheduler
        if hasattr(scheduler, "sigmas"):
            return float(scheduler.sigmas[-1] / (1 + scheduler.sigmas[-1]))
        return float(_sigma(scheduler.final_alpha_cumprod))

    def timestep(self, sigma: Tensor) -> Tensor:
        """[n] between those of the table linear in k, as Euler's scheduler interpolates; those of
        DPM-Solver++ linear in log k, and whole. Beyond the table the first and the last one."""
        scheduler = self.pipeline.scheduler
        if self._table is None or self._table.device != sigma.device:
            self._table = _k(_sigma(scheduler.alphas_cumprod)).float().to(sigma.device)
        k, table = _k(sigma).clamp(self._table[0], self._table[-1]), self._table
        if is_first_order(scheduler):
            k, table = k.log(), table.log()
        index = torch.searchsorted(table, k).clamp(1, len(table) - 1)
        low, high = table[index - 1], table[index]
        time = index - 1 + (k - low) / (high - low)
        is_whole = (time - time.round()).abs() < WHOLE
        return torch.where(is_whole | is_first_order(scheduler), time.round(), time)

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


def _with_eulers_steps(scheduler: Any) -> Exchange | None:
    """A scheduler with Euler's steps at the noise levels of a solver; None for unknown levels."""
    config = scheduler.config
    if not hasattr(scheduler, "alphas_cumprod"):
        return None
    if not hasattr(scheduler, "sigmas"):  # timesteps of the table, as DDIM's
        if config.get("timestep_spacing") == "leading":
            return Exchange(DDIMScheduler, {"clip_sample": False})
        # Spaced otherwise, DDIM's own step would not meet the next timestep.
        above_0 = config.timestep_spacing == "trailing" and not config.get("set_alpha_to_one", 1)
        return Exchange(EulerDiscreteScheduler, SMALLEST_LAST if above_0 else {})
    if "solver_order" not in config:
        return Exchange(EulerDiscreteScheduler)
    if any(config.get(name) for name in SPACED):  # of the whole table, whatever the spacing
        return Exchange(EulerDiscreteScheduler, {"timestep_spacing": "linspace"})
    # DEIS has no setting for its last level, which is that of timestep 0.
    last = {} if "final_sigmas_type" in config else SMALLEST_LAST
    return Exchange(DPMSolverMultistepScheduler, {**FIRST_ORDER, **last})


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
