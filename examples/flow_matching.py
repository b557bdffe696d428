"""Flow matching for some minutes: how bases of the examples of pictures and films are trained."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

Velocity = Callable[[Tensor, Tensor, Sequence[int]], Tensor]
"""Noisy latents [n, ...], noise levels [n] and numbers of rows to velocities [n, ...]."""


def match_flow(
    parts: nn.Module,
    velocity: Velocity,
    latents: Tensor,
    *,
    minutes: float,
    batch: int = 128,
    rate: float = 1e-3,
) -> int:
    """Train `parts` so that `velocity` is noise - clean at every level; returns the updates.

    latents: [rows, ...], clean. Noise levels are logit-normal, as in SD3's paper, and the final
    weights are a moving average.
    """
    parts.train()
    optimizer = torch.optim.AdamW(parts.parameters(), lr=rate, weight_decay=0.01)
    average, updates, mean_loss, printed = deepcopy(parts), 0, 1.0, time.monotonic()
    for share in clock(minutes):
        cool(optimizer, rate, share)
        rows = torch.randint(len(latents), (batch,))
        clean = latents[rows]
        noise = torch.randn_like(clean)
        sigma = torch.randn(batch).sigmoid()
        mixed = torch.lerp(clean, noise, sigma.view(-1, *[1] * (clean.ndim - 1)))
        loss = (velocity(mixed, sigma, rows.tolist()) - (noise - clean)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
        with torch.no_grad():
            decay = min(0.999, updates / (updates + 10))
            torch._foreach_lerp_(list(average.parameters()), list(parts.parameters()), 1 - decay)
        mean_loss = 0.99 * mean_loss + 0.01 * loss.item()
        if time.monotonic() - printed > 60:
            printed = time.monotonic()
            print(f"  {updates} updates, loss {mean_loss:.4f}", flush=True)
    parts.load_state_dict(average.state_dict())
    parts.eval()
    return updates


def clock(minutes: float) -> Iterator[float]:
    """Yields the share of the time that has passed, until it reaches 1."""
    started = time.monotonic()
    while (share := (time.monotonic() - started) / (60 * minutes)) < 1:
        yield share


def cool(optimizer: torch.optim.Optimizer, rate: float, share: float) -> None:
    """Set the learning rate: a short warm-up, then half a cosine down to 0."""
    for group in optimizer.param_groups:
        group["lr"] = rate * min(1.0, share / 0.02) * 0.5 * (1 + math.cos(math.pi * share))
