"""Noise levels of the policy `forward_process`: which of its decisions are at which level.

An algorithm that draws levels itself calls these functions in `Algorithm.with_decisions`. All draws
are by each rollout's own seed and the training step, so that micro-batches, processes and resuming
change none of them.
"""

from dataclasses import replace

import torch
from torch import Tensor

from groupwise.rollouts import Rollouts
from groupwise_flow.process.seeds import hashed

SEED = "seed"
LEVELS = "sigma"
NOISE = "noise"


def uniform(rollouts: Rollouts, step: int) -> Tensor:
    """[B, T] float32 on the CPU: numbers drawn from [0, 1), one for each decision.

    step: training steps done so far.
    """
    width = rollouts.mask.shape[1]
    return torch.stack(
        [
            torch.rand(width, generator=torch.Generator().manual_seed(hashed(f"{name}/levels")))
            for name in _names(rollouts, step)
        ]
    )


def stratified(rollouts: Rollouts, step: int, sigmas: Tensor) -> Tensor:
    """[B, T] levels of `sigmas` [n]: one from each of T parts of them that are equally long."""
    count, width = len(sigmas), rollouts.mask.shape[1]
    places = (torch.arange(width) + uniform(rollouts, step)) * (count / width)
    return sigmas[places.long().clamp(max=count - 1)]


def with_levels(rollouts: Rollouts, sigma: Tensor, step: int) -> Rollouts:
    """The rollouts with the noise levels [B, T] of their decisions, and fresh noise for each.

    sigma: between 0, no noise, and 1, nothing else; step: training steps done so far.

    Raises ValueError for another shape, or levels outside [0, 1].
    """
    if sigma.shape != rollouts.mask.shape:
        raise ValueError(
            f"with_levels: levels have shape {list(sigma.shape)}, expected that of the mask, "
            f"{list(rollouts.mask.shape)}"
        )
    if not bool(((sigma >= 0) & (sigma <= 1)).all()):
        raise ValueError("with_levels: expected levels between 0 and 1")
    # Without the sign bit, to fit into int64.
    noise = [
        [hashed(f"{name}/noise/{number}") >> 1 for number in range(sigma.shape[1])]
        for name in _names(rollouts, step)
    ]
    drawn = {
        LEVELS: sigma.to(rollouts.mask.device, torch.float32),
        NOISE: torch.tensor(noise, dtype=torch.int64),
    }
    return replace(rollouts, trajectory={**rollouts.trajectory, **drawn})


def _names(rollouts: Rollouts, step: int) -> list[str]:
    return [f"{seed}/{step}" for seed in rollouts.tensor(SEED).tolist()]
