"""Drawing tokens: uniforms named by seeds, turned into tokens by the inverse of the cumulative
distribution."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

BLOCK = 256
"""Tokens of the vocabulary whose weights are summed at once."""


def uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """[N, length] float64 in [0, 1): row i drawn by a generator seeded with seeds[i]."""
    generator = torch.Generator()
    rows = [
        torch.rand(length, generator=generator.manual_seed(seed), dtype=torch.float64)
        for seed in seeds
    ]
    return torch.stack(rows)


def place(device: torch.device) -> torch.device:
    """Where float64 sums of a device's tensors are taken: there, or on the CPU (Apple's mps)."""
    return torch.device("cpu") if device.type == "mps" else device


def softmax(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(exp(z - peak) [n, v], its sum [n], logsumexp(z) [n]) of logits z, by one exponential."""
    peak = logits.amax(dim=1)
    powers = (logits - peak.unsqueeze(1)).exp()
    total = powers.sum(dim=1)
    return powers, total, peak + total.log()


def overlap(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """[n] 1 - total variation distance of two distributions, each (weights [n, v], sum [n]).

    That is the mass both have in common: sum_i min(p_i, q_i). Where q is p cut to some of the
    tokens, it is p's mass of those.
    """
    shares = [weights / total.unsqueeze(1) for weights, total in (first, second)]
    return torch.minimum(*shares).sum(dim=1)


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """[n] tokens: the first whose cumulative share of the weights [n, v] exceeds the row's uniform.

    Summed in float64, since in float32 the sum over a large vocabulary errs by more than the
    rarest tokens' whole probability; and in two levels, block then token, since running sums in
    float64 over all of it would take longer than everything else here.
    """
    device = weights.device
    weights, uniform = weights.to(place(device)), uniform.to(place(device))
    size = weights.shape[1]
    block = min(BLOCK, size)
    blocks = torch.nn.functional.pad(weights, (0, -size % block)).unflatten(1, (-1, block))
    running = blocks.sum(dim=2, dtype=torch.float64).cumsum(dim=1)
    target = uniform.unsqueeze(1) * running[:, -1:]
    index = _first_above(running, target)
    inside = blocks.gather(1, index.unsqueeze(2).expand(-1, -1, block)).squeeze(1).double()
    target = target - (running.gather(1, index) - inside.sum(dim=1, keepdim=True))
    token = _first_above(inside.cumsum(dim=1), target)
    return (index * block + token).squeeze(1).to(device)


def _first_above(running: Tensor, target: Tensor) -> Tensor:
    """[n, 1] the first place of each row's running sum above target, of those where it rises."""
    above = torch.searchsorted(running, target.clamp(min=0.0), right=True)
    # Rounding at the very end could step past the last place with any weight.
    last = torch.searchsorted(running, running[:, -1:].contiguous())
    return torch.minimum(above, last)


def filters_for(settings: Any) -> LogitsProcessorList:
    """transformers' own processors, in the order its `generate` applies them."""
    from transformers import (
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    processors = LogitsProcessorList()
    if settings.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    if settings.top_k:
        processors.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        processors.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p > 0.0:
        processors.append(MinPLogitsWarper(settings.min_p))
    return processors
