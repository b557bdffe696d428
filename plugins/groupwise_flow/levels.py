"""Levels: an adapter's noise levels, checked."""

import torch
from torch import Tensor

from groupwise.errors import UserError
from groupwise_flow.adapter import Adapter


def levels(adapter: Adapter, steps: int) -> Tensor:
    """[steps + 1] float32 on the CPU, falling to 0 from at most 1.

    A sample at sigma is (1 - sigma) data + sigma noise. Raises UserError where the scheduler has no
    such levels.
    """
    scheduler = type(adapter.pipeline.scheduler).__name__
    try:
        sigmas = adapter.sigmas(steps).to(device="cpu", dtype=torch.float32)
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"policy.model: not a flow-matching pipeline: {scheduler} has no noise levels as "
            f"{type(adapter).__name__} expects them ({error})"
        ) from error
    if len(sigmas) != steps + 1 or bool((sigmas.diff() >= 0).any()):
        raise UserError(
            f"policy.model: {scheduler} does not have {steps} steps of falling noise levels with "
            f"one pass of the model each; expected an Euler scheduler"
        )
    if sigmas[0] > 1 or sigmas[-1] != 0:
        raise UserError(
            f"policy.model: the noise levels of {scheduler} fall from {float(sigmas[0]):g} to "
            f"{float(sigmas[-1]):g}, where a flow model's fall from at most 1 to 0; an adapter "
            f"of your own can convert them (`sigmas`, `noise_scale`)"
        )
    return sigmas
