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
    """(exp(z - peak) [n, v], their sums by block, logsumexp(z) [n]) of logits z.

    By one exponential, and no more passes over the vocabulary than there must be.
    """
    peak = logits.amax(dim=1)
    powers = (logits - peak.unsqueeze(1)).exp_()
    sums = block_sums(powers)
    return powers, sums, peak + sums.sum(dim=1).log()


def block_sums(weights: Tensor) -> Tensor:
    """[n, blocks] of weights [n, v], `BLOCK` tokens each; the last of what is left."""
    whole = weights.shape[1] // BLOCK * BLOCK
    sums = weights[:, :whole].unflatten(1, (-1, BLOCK)).sum(dim=2)
    if whole < weights.shape[1]:
        sums = torch.cat([sums, weights[:, whole:].sum(dim=1, keepdim=True)], dim=1)
    return sums


def overlap(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """[n] 1 - total variation distance of two distributions, each (weights [n, v], their sums).

    That is the mass both have in common: sum_i min(p_i, q_i). Where q is p cut to some of the
    tokens, it is p's mass of those.
    """
    shares = [weights / sums.sum(dim=1, keepdim=True) for weights, sums in (first, second)]
    return torch.minimum(*shares).sum(dim=1)


def inverse_cdf(weights: Tensor, sums: Tensor, uniform: Tensor) -> Tensor:
    """[n] tokens: the first whose cumulative share of the weights [n, v] exceeds the row's uniform.

    sums: `block_sums(weights)`. First the block is drawn and then, by what is left of the uniform,
    the token in it. Running sums are in float64, since in float32 they err by more than the rarest
    tokens' whole probability; a block's sum errs by no larger part of it than the weights do.
    """
    device = weights.device
    sums, uniform = sums.to(place(device)).double(), uniform.to(place(device))
    running = sums.cumsum(dim=1)
    target = uniform.unsqueeze(1) * running[:, -1:]
    block = _first_above(running, target)
    mass = sums.gather(1, block)
    share = (target - (running.gather(1, block) - mass)) / mass
    tokens = block.to(device) * BLOCK + torch.arange(BLOCK, device=device)
    inside = weights.gather(1, tokens.clamp(max=weights.shape[1] - 1))
    inside = inside.where(tokens < weights.shape[1], 0.0).to(place(device)).double().cumsum(dim=1)
    token = block * BLOCK + _first_above(inside, share * inside[:, -1:])
    return token.squeeze(1).to(device)


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
