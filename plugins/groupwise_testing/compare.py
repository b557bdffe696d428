"""Differences between outputs, rollouts, completions or gradients, as one number each."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from groupwise.policy import Policy
from groupwise.rollouts import Rollouts
from groupwise.weights import kept_parameters


def gap(one: Tensor, other: Tensor) -> float:
    """max |one - other| / max(1, max |other|); inf if shapes differ, or for NaN."""
    if one.shape != other.shape:
        return math.inf
    if not one.numel():
        return 0.0
    one, other = one.detach().double().cpu(), other.detach().double().cpu()
    largest = float((one - other).abs().max()) / max(1.0, float(other.abs().max()))
    return largest if math.isfinite(largest) else math.inf


def completions_gap(one: Any, other: Any) -> float:
    """0 for equal completions, the `gap` of numbers and of pixels, inf for other differences."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return math.inf
        return max((completions_gap(one[key], other[key]) for key in one), default=0.0)
    texts = isinstance(one, str | bytes) or isinstance(other, str | bytes)
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not texts:
        if len(one) != len(other):
            return math.inf
        pairs = zip(one, other, strict=True)
        return max((completions_gap(a, b) for a, b in pairs), default=0.0)
    values, others = _numbers(one), _numbers(other)
    if texts or values is None or others is None:
        return 0.0 if one == other else math.inf
    pixels = values.dtype == torch.uint8 == others.dtype and values.shape == others.shape
    return (_pixels_gap if pixels else gap)(values, others)


def _pixels_gap(one: Tensor, other: Tensor) -> float:
    """The largest difference of pixels, of 1; the mean if none is above one level.

    A pixel is rounded to one of 256 levels: a value near the border of two becomes another by any
    error, however small. The mean over pixels is that of the errors before they were rounded.
    """
    levels = (one.double() - other.double()).abs()
    if not levels.numel():
        return 0.0
    return float(levels.max() if levels.max() > 1 else levels.mean()) / 255


def _numbers(value: Any) -> Tensor | None:
    """A number, an array or an image as a tensor; None for anything else."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    array = np.asarray(value)
    return torch.from_numpy(array.copy()) if array.dtype.kind in "biuf" else None


def outputs_gap(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest `gap` of outputs of the same names."""
    return max((gap(one[name], other[name]) for name in other), default=0.0)


def at_decisions(value: Tensor, mask: Tensor) -> Tensor:
    """The values [n, ...] at decisions, on the CPU."""
    return value.detach().cpu()[mask.cpu()]


def rollouts_gap(one: Rollouts, other: Rollouts) -> tuple[float, str]:
    """The largest difference of two batches, and what differs; 0 for the same samples."""
    size, width = one.mask.shape[0], max(one.mask.shape[1], other.mask.shape[1])
    if size != len(other):
        return math.inf, "the number of rollouts"
    masks = [
        torch.nn.functional.pad(r.mask.cpu(), (0, width - r.mask.shape[1])) for r in (one, other)
    ]
    if not torch.equal(*masks):
        return math.inf, "mask"
    parts = {
        "completions": max(map(completions_gap, one.completions, other.completions), default=0.0),
        "truncated": gap(one.truncated, other.truncated),
    }
    if one.sampler_log_probs is not None and other.sampler_log_probs is not None:
        log_probs = [at_decisions(r.sampler_log_probs, r.mask) for r in (one, other)]  # type: ignore[arg-type]
        parts["sampler_log_probs"] = gap(*log_probs)
    worst = max(parts, key=lambda name: parts[name])
    return parts[worst], worst


@contextmanager
def nudged(
    policy: Policy, seed: int = 0, size: float = 0.1, *, kept: bool = False
) -> Iterator[None]:
    """A context with changed weights: size (mean |weight| + 0.1) noise is added to each.

    kept: change only the weights that `KeptWeights` copy.
    """
    generator = torch.Generator().manual_seed(seed)
    trained = [p for p in policy.parameters() if p.requires_grad]
    if kept:
        trained = [*kept_parameters(policy).values()]
    before = [p.detach().clone() for p in trained]
    with torch.no_grad():
        for p in trained:
            noise = divided_as(p, torch.randn(p.shape, generator=generator))
            p.add_(size * (p.abs().mean() + 0.1) * noise)
    try:
        yield
    finally:
        with torch.no_grad():
            for p, value in zip(trained, before, strict=True):
                p.copy_(value)


def gradient(policy: Policy) -> Tensor:
    """The gradients of all trained weights as one vector in float64, zeros for None."""
    grads = [
        torch.zeros_like(p) if p.grad is None else p.grad
        for p in policy.parameters()
        if p.requires_grad
    ]
    return torch.cat([whole(grad).detach().double().cpu().flatten() for grad in grads])


def whole(value: Tensor) -> Tensor:
    """The whole tensor; a collective where it is sharded."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def divided_as(parameter: Tensor, value: Tensor) -> Tensor:
    """The value on the parameter's device, sharded like the parameter."""
    if isinstance(parameter, DTensor):
        return distribute_tensor(value, parameter.device_mesh, parameter.placements)
    return value.to(parameter)


def direction_gap(one: Tensor, other: Tensor) -> float:
    """|one - other| / |other| of gradients; inf if it is not finite."""
    relative = float((one - other).norm() / other.norm().clamp(min=1e-30))
    return relative if math.isfinite(relative) else math.inf
