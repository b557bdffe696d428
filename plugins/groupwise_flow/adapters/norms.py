"""Guidance that keeps the norm of the conditional velocity, as several pipelines do."""

import torch
from torch import Tensor


def with_norm_of(velocity: Tensor, other: Tensor) -> Tensor:
    """A velocity [..., d] scaled, along its last dimension, to the norm of another one."""
    norms = [torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in (other, velocity)]
    return velocity * (norms[0] / norms[1])
