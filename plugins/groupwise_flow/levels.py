"""Levels: the noise levels that an adapter states, checked."""

import torch
from torch import Tensor

from groupwise.errors import UserError
from groupwise_flow.adapter import Adapter


def levels(adapter: Adapter, steps: int) -> Tensor:
    """[steps + 1] float32 on the CPU, falling to 0; UserError where the scheduler has no such.

    At sigma a sample is (1 - sigma) data + sigma noise, so 1 is the most there can be.
    """
    scheduler = type(adapter.pipeline.scheduler).__name__
    try:
        sigmas = adapter.sigmas(steps).to(device="cpu", dtype=torch.float32)
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"policy.model: no flow-matching pipeline: {scheduler} has no noise levels as "
            f"{type(adapter).__name__} expects them ({error})"
        ) from error
    if len(sigmas) != steps + 1 or bool((sigmas.diff() >= 0).any()):
        raise UserError(
            f"policy.model: {scheduler} does not give {steps} steps of falling "
            f"noise levels, one pass of the model each; an Euler scheduler is expected"
        )
    if sigmas[0] > 1 or sigmas[-1] != 0:
        raise UserError(
            f"policy.model: the noise levels of {scheduler} fall from {float(sigmas[0]):g} to "
            f"{float(sigmas[-1]):g}, where a flow model's fall from 1 at the most to 0; an adapter "
            f"of your own can translate them (`sigmas`, `noise_scale`)"
        )
    return sigmas
