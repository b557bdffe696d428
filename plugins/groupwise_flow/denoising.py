"""Denoising a batch: ODE steps outside the window, decisions with noise inside it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from groupwise_flow import sde

Velocity = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""(latents [n, ...], sigma [n], rows [n]) -> the velocity and, with guidance, its unconditional
part."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a batch of B rollouts is denoised.

    sigmas: [steps + 1]; first: [B] the first decision of each; decisions: how many, 0 for none.
    source: [B] the row whose start a row shares until its first decision, itself if none.
    """

    sigmas: Tensor
    first: Tensor
    decisions: int
    source: Tensor
    kind: sde.Kind
    noise_level: float

    def to(self, device: torch.device) -> "Plan":
        moved = {name: getattr(self, name).to(device) for name in ("sigmas", "first", "source")}
        return replace(self, **moved)


@dataclass(frozen=True, kw_only=True)
class Denoised:
    """latents [B, ...]; path [B, decisions + 1, ...], the samples from the first decision on;
    mean [B, decisions, ...] and log_probs [B, decisions] of the decisions; unconditional as mean,
    or None without guidance."""

    latents: Tensor
    path: Tensor
    mean: Tensor
    log_probs: Tensor
    unconditional: Tensor | None


def denoise(velocity: Velocity, start: Tensor, noise: Tensor, plan: Plan) -> Denoised:
    """From noise to latents.

    start: [B, ...] standard normal; noise: [B, decisions, ...], that of the decisions.
    """
    shape = (len(start), plan.decisions)
    path = start.new_zeros(shape[0], shape[1] + 1, *start.shape[1:])
    mean, log_probs = torch.zeros_like(noise), start.new_zeros(shape)
    unconditional: Tensor | None = None
    x = start
    for number, (sigma, after) in enumerate(zip(plan.sigmas[:-1], plan.sigmas[1:], strict=True)):
        v, v_unconditional = _velocities(velocity, x, sigma, plan, number)
        x_next = sde.step(v, x, sigma, after, kind="ode").next_sample
        decision = number - plan.first
        rows = ((decision >= 0) & (decision < plan.decisions)).nonzero().flatten()
        if len(rows):
            at = decision[rows]
            drawn = sde.step(
                v[rows],
                x[rows],
                sigma,
                after,
                kind=plan.kind,
                noise_level=plan.noise_level,
                noise=noise[rows, at],
            )
            path[rows, at], path[rows, at + 1] = x[rows], drawn.next_sample
            mean[rows, at], log_probs[rows, at] = drawn.mean, drawn.log_prob
            x_next[rows] = drawn.next_sample
            if v_unconditional is not None:
                if unconditional is None:
                    unconditional = torch.zeros_like(noise)
                unconditional[rows, at] = v_unconditional[rows]
        x = x_next
    return Denoised(
        latents=x, path=path, mean=mean, log_probs=log_probs, unconditional=unconditional
    )


def _velocities(
    velocity: Velocity, x: Tensor, sigma: Tensor, plan: Plan, number: int
) -> tuple[Tensor, Tensor | None]:
    """Velocities of all rows; those that are still alike are computed once."""
    own = torch.arange(len(x), device=x.device)
    source = torch.where(number <= plan.first, plan.source, own)
    rows, which = source.unique(return_inverse=True)
    v, unconditional = velocity(x[rows], sigma.expand(len(rows)), rows)
    return v[which], None if unconditional is None else unconditional[which]
