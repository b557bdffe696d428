"""One denoising step of a flow model, deterministic or with noise, and its Gaussian log-prob.

A sample at noise level sigma is x = (1 - sigma) x0 + sigma x1, with data x0 and noise x1; the model
predicts the velocity v = x1 - x0, so x0 = x - sigma v and x1 = x + (1 - sigma) v. A step goes from
sigma to sigma_next < sigma. The SDEs "flow" and "dance" have the marginals of the ODE in the limit
of short steps; "cps" and "ddim" keep the coefficients of predicted data and noise for steps of any
length.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Kind = Literal["flow", "cps", "dance", "ddim", "ode"]

NEAR = 0.25
"""Share of a step: a level that is closer to 1 than this counts as 1 for Flow-SDE."""


@dataclass(frozen=True, kw_only=True)
class SdeStep:
    """next_sample [B, ...], log_prob [B], mean [B, ...], std broadcastable to them, all float32."""

    next_sample: Tensor
    log_prob: Tensor
    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class Noise:
    """The noise of a step: its formula and its scale. Policies with equal ones draw alike.

    kind: see `step`; level: its `noise_level`, of no effect for "ode".

    Raises ValueError for an unknown kind, and a level below 0 or, for cps and ddim, above 1.
    """

    kind: Kind
    level: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(
                f'kind must be "flow", "cps", "dance", "ddim" or "ode", received {self.kind!r}'
            )
        if self.level < 0:
            raise ValueError(f"the noise level must not be negative, received {self.level:g}")
        if self.kind in ("cps", "ddim") and self.level > 1:
            raise ValueError(
                f"the noise level must be at most 1 for {self.kind}, received {self.level:g}"
            )

    def move(
        self,
        velocity: Tensor,
        sample: Tensor,
        sigma: float | Tensor,
        sigma_next: float | Tensor,
        *,
        next_sample: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> SdeStep:
        """`step` without checks of its arguments, so that the host need not wait for the device.

        Without `next_sample` and `noise` the next sample is the mean.
        """
        dtype = _dtype(velocity, sample)
        v, x = velocity.to(dtype), sample.to(dtype)
        mean, std = self._moments(v, x, _column(sigma, x), _column(sigma_next, x))
        if next_sample is not None:
            taken = next_sample.to(dtype)
        else:
            taken = mean if noise is None else mean + std * noise.to(dtype)
        return SdeStep(next_sample=taken, log_prob=log_prob(taken, mean, std), mean=mean, std=std)

    def _moments(self, v: Tensor, x: Tensor, s: Tensor, s_next: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [B, ...] and std [B, 1, ...] of the step."""
        dt, level = s_next - s, self.level
        if self.kind == "ode":
            return x + v * dt, torch.zeros_like(s)
        if self.kind == "flow":
            squared = level**2 * s / (1 - torch.where(1 - s < -NEAR * dt, s_next, s))
            mean = x * (1 + squared * dt / (2 * s)) + v * (1 + squared * (1 - s) / (2 * s)) * dt
            return mean, (squared * -dt).sqrt()
        if self.kind == "dance":
            score = -(x - (1 - s) * (x - s * v)) / s.square()
            return x + v * dt - level**2 * score * dt / 2, level * (-dt).sqrt()
        cps = self.kind == "cps"
        std = s_next * math.sin(level * math.pi / 2) if cps else _ddim(s, s_next, level)
        kept = (s_next.square() - std.square()).clamp(min=0).sqrt()
        return (1 - s_next) * (x - s * v) + kept * (x + (1 - s) * v), std


ODE = Noise("ode")
"""No noise: Euler's step."""


def step(
    velocity: Tensor,
    sample: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    *,
    kind: Kind = "flow",
    noise_level: float = 0.7,
    next_sample: Tensor | None = None,
    noise: Tensor | None = None,
) -> SdeStep:
    """Take a step, or with `next_sample` compute the log-prob of a step that was taken.

    velocity, sample, noise, next_sample: [B, ...]; sigma, sigma_next: floats or [B].
    kind: "flow": Flow-SDE, arXiv:2505.05470, eq. 9, with sigma_next in the denominator 1 - sigma at
        sigma = 1, and where 1 - sigma is below a quarter of the step: there the formula would add
        more noise than a sample has; "cps": coefficients-preserving sampling, arXiv:2509.05952;
        "dance": DanceGRPO's SDE, arXiv:2505.07818, eq. 7; "ddim": DDIM with eta = noise_level,
        arXiv:2010.02502, eq. 16; "ode": Euler's step, no noise.
    noise: standard normal; drawn from torch's global generator if needed and None.

    log_prob is log N(next_sample; mean, std), averaged over the sample's dimensions; 0 without
    noise. Computed in float32 or wider. Raises ValueError for different shapes, what `Noise`
    refuses, and sigmas that do not fall.
    """
    for name, value in {"velocity": velocity, "noise": noise, "next_sample": next_sample}.items():
        if value is not None and value.shape != sample.shape:
            raise ValueError(
                f"step: {name} {list(value.shape)} and sample {list(sample.shape)} must have the "
                f"same shape"
            )
    columns = [_column(value, sample.to(_dtype(velocity, sample))) for value in (sigma, sigma_next)]
    if bool((columns[1] >= columns[0]).any()):
        raise ValueError("step: sigma_next must be below sigma")
    if next_sample is None and noise is None and kind != "ode":
        noise = torch.randn_like(sample, dtype=columns[0].dtype)
    chosen = Noise(kind, noise_level)
    return chosen.move(velocity, sample, sigma, sigma_next, next_sample=next_sample, noise=noise)


def log_prob(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """[B]: log N(value; mean, std) averaged over all dimensions but the first; 0 where std is 0."""
    certain = std == 0
    scale = std.masked_fill(certain, 1.0)
    density = -0.5 * ((value - mean) / scale).square() - scale.log() - 0.5 * math.log(2 * math.pi)
    return density.masked_fill(certain, 0.0).flatten(1).mean(dim=1)


def _ddim(s: Tensor, s_next: Tensor, eta: float) -> Tensor:
    """The std of DDIM's step, arXiv:2010.02502, eq. 16.

    A diffusion model's sample is a x0 + b x1 with a^2 + b^2 = 1: ours divided by the norm n of
    (1 - s, s), so a = (1 - s) / n and b = s / n. The published std, of such samples, is
    eta b' / b sqrt(1 - (a / a')^2), and ours n' times that.
    """
    n, n_next = (torch.hypot(1 - each, each) for each in (s, s_next))
    share = ((1 - s) * n_next / (n * (1 - s_next))).square()
    return eta * s_next * n / s * (1 - share).clamp(min=0).sqrt()


def _dtype(velocity: Tensor, sample: Tensor) -> torch.dtype:
    """The dtype a step is computed in: float32 or wider."""
    return torch.promote_types(torch.promote_types(velocity.dtype, sample.dtype), torch.float32)


def _column(sigma: float | Tensor, sample: Tensor) -> Tensor:
    """sigma as [B, 1, ...] or [1, 1, ...], broadcastable to the sample."""
    value = torch.as_tensor(sigma, dtype=sample.dtype, device=sample.device).reshape(-1)
    if len(value) not in (1, len(sample)):
        raise ValueError(f"step: {len(value)} sigmas for {len(sample)} samples")
    return value.reshape(-1, *([1] * (sample.ndim - 1)))
