"""Levels: an adapter's noise levels, checked."""

import inspect
from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from groupwise.kit.errors import UserError, first_line
from groupwise_flow.adapter import Adapter
from groupwise_flow.adapter.noise_levels import ROUNDING

TOLERANCE = 1e-4
"""Largest gap between Euler's step and the scheduler's, and between timesteps relative to the
number of training steps; both round in float32."""
LEVEL = 1e-6
"""More than the rounding of a level in float32."""


def levels(adapter: Adapter, steps: int) -> Tensor:
    """[steps + 1] float32 on the CPU, falling from at most 1 to the adapter's `last_sigma`.

    A sample at sigma is (1 - sigma) data + sigma noise. A first level that is 1 but for rounding is
    1. Raises UserError where the scheduler has no such levels, or where its own steps between them
    are not Euler's: the pipeline would then draw other pictures.
    """
    scheduler = adapter.pipeline.scheduler
    name = type(scheduler).__name__
    try:
        sigmas = adapter.sigmas(steps).to(device="cpu", dtype=torch.float32, copy=True)
        last = adapter.last_sigma()
    except UserError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"policy.model: not a flow-matching pipeline: {name} has no noise levels as "
            f"{type(adapter).__name__} expects them ({error})"
        ) from error
    if len(sigmas) != steps + 1 or bool((sigmas.diff() >= 0).any()):
        raise UserError(
            f"policy.model: {name} does not have {steps} steps of falling noise levels with "
            f"one pass of the model each; expected an Euler scheduler{_changed(scheduler)}"
        )
    if abs(float(sigmas[0]) - 1) < ROUNDING:
        sigmas[0] = 1.0
    if sigmas[0] > 1 or abs(float(sigmas[-1]) - last) > ROUNDING:
        raise UserError(
            f"policy.model: the noise levels of {name} fall from {float(sigmas[0]):g} to "
            f"{float(sigmas[-1]):g}, where {type(adapter).__name__} expects them to fall from at "
            f"most 1 to {last:g}; an adapter of your own can convert them (`sigmas`, "
            f"`noise_scale`, `last_sigma`)"
        )
    if adapter.is_comparable(sigmas):
        _check_steps(adapter, sigmas)
    return sigmas


def levels_before(adapter: Adapter, steps: int) -> Tensor | None:
    """The levels of the scheduler that the pipeline had before it was exchanged; None where the
    adapter cannot read them."""
    try:
        return adapter.levels_of(adapter.own_scheduler, steps).cpu().float()
    except (AttributeError, TypeError, ValueError):
        return None


def is_close(ours: Tensor, theirs: Tensor) -> bool:
    """Whether these are the same levels."""
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=0, atol=ROUNDING)


def _check_steps(adapter: Adapter, sigmas: Tensor) -> None:
    """Raise UserError unless the scheduler's timesteps are the adapter's, and its steps Euler's.

    Its step is called, so nothing depends on which settings a version of diffusers has.
    """
    scheduler = deepcopy(adapter.pipeline.scheduler)  # steps change it
    sample = torch.linspace(-1, 1, 16).view(1, 4, 2, 2)
    times = torch.as_tensor(scheduler.timesteps).to(sigmas)
    # Levels are rounded, and a timestep that is cut to a whole number may fall on either side.
    around = (sigmas[:-1] - LEVEL, sigmas[:-1], (sigmas[:-1] + LEVEL).clamp(max=1))
    expected = torch.stack([adapter.timestep(each) for each in around])
    slack = TOLERANCE * float(expected.max())
    low, high = expected.amin(dim=0) - slack, expected.amax(dim=0) + slack
    if times.shape != low.shape or not bool(((times >= low) & (times <= high)).all()):
        raise _refusal(scheduler, "its timesteps are not proportional to its noise levels")
    for number, (sigma, after) in enumerate(pairwise(sigmas)):
        # Another velocity each time, so that solvers with a memory differ.
        velocity = torch.cos(sample + number)
        try:
            moved = adapter.own_step(scheduler, velocity, sample, number, sigmas)
        except Exception as error:  # whatever a scheduler of any library raises
            raise _refusal(scheduler, f"its step fails ({first_line(error)})") from error
        sample = sample + (after - sigma) * velocity
        if float((moved - sample).abs().max()) > TOLERANCE:
            raise _refusal(scheduler, "its steps are others")


def _refusal(scheduler: Any, problem: str) -> UserError:
    return UserError(
        f"policy.model: pictures are drawn by Euler's steps, x + (sigma_next - sigma) velocity, "
        f"and {type(scheduler).__name__} would draw others: {problem}{_changed(scheduler)}; change "
        f"it in the pipeline's scheduler/scheduler_config.json"
    )


def _changed(scheduler: Any) -> str:
    """The scheduler's settings that differ from its class's defaults, for messages."""
    parameters = inspect.signature(type(scheduler)).parameters
    values = {name: scheduler.config.get(name, p.default) for name, p in parameters.items()}
    changed = [
        f"{name}: {value}" for name, value in values.items() if value != parameters[name].default
    ]
    return f" (its settings: {', '.join(changed)})" if changed else ""
