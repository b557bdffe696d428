"""Drawing tokens by inverse transform sampling: token = the first i with sum_{j<=i} p_j > u, the
uniforms u from a generator seeded per completion."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessorList

BLOCK = 256
"""Size of the blocks of the vocabulary that are summed first, to find a token in two steps."""


def uniforms(seeds: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """[N, max lengths] float64 in [0, 1), 0 after each row's length; row i comes from a generator
    seeded with seeds[i]."""
    generator = torch.Generator()
    rows = [
        torch.rand(length, generator=generator.manual_seed(seed), dtype=torch.float64)
        for seed, length in zip(seeds, lengths, strict=True)
    ]
    return pad_sequence(rows, batch_first=True)


def place(device: torch.device) -> torch.device:
    """The device of float64 sums: this one, or the CPU for Apple's mps, which has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def softmax(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(exp(z - max z) [n, v], its `block_sums`, logsumexp(z) [n]) of logits z.

    With one exponential and as few passes over the vocabulary as possible.
    """
    peak = logits.amax(dim=1)
    powers = (logits - peak.unsqueeze(1)).exp_()
    sums = block_sums(powers)
    return powers, sums, peak + sums.sum(dim=1).log()


def block_sums(weights: Tensor) -> Tensor:
    """[n, blocks] sums of weights [n, v] over blocks of `BLOCK` tokens; the last may be shorter."""
    whole = weights.shape[1] // BLOCK * BLOCK
    sums = weights[:, :whole].unflatten(1, (-1, BLOCK)).sum(dim=2)
    if whole < weights.shape[1]:
        sums = torch.cat([sums, weights[:, whole:].sum(dim=1, keepdim=True)], dim=1)
    return sums


def entropy(logits: Tensor, powers: Tensor, sums: Tensor, normaliser: Tensor) -> Tensor:
    """[n] entropy of the softmax of logits z [n, v], in nats: logsumexp(z) - sum_i p_i z_i.

    powers, sums, normaliser: what `softmax` returned for them.
    """
    finite = logits.clamp(min=torch.finfo(logits.dtype).min)  # -inf times probability 0 is NaN
    return normaliser - torch.linalg.vecdot(powers, finite) / sums.sum(dim=1)


def overlap(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """[n] sum_i min(p_i, q_i) = 1 - total variation distance, each given as (weights, block sums).

    Where q is p restricted to some tokens (top_k, top_p), this is p's mass on them.
    """
    shares = [weights / sums.sum(dim=1, keepdim=True) for weights, sums in (first, second)]
    return torch.minimum(*shares).sum(dim=1)


def inverse_cdf(weights: Tensor, sums: Tensor, uniform: Tensor) -> Tensor:
    """[n] tokens: the first whose cumulative share of the weights [n, v] exceeds the row's uniform.

    sums: `block_sums(weights)`. Where the weights are not finite, the token is arbitrary.

    First the block is drawn, then the token within it. Cumulative sums are in float64: in float32
    their error exceeds the probability of the rarest tokens. The sum within one block is as exact,
    relatively, as the weights themselves.
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
    return token.clamp(max=weights.shape[1] - 1).squeeze(1).to(device)


def _first_above(running: Tensor, target: Tensor) -> Tensor:
    """[n, 1] index of the first cumulative sum above target, never of an entry of weight 0."""
    above = torch.searchsorted(running, target.clamp(min=0.0), right=True)
    # Rounding could step past the last entry that has any weight.
    last = torch.searchsorted(running, running[:, -1:].contiguous())
    return torch.minimum(above, last).clamp(max=running.shape[1] - 1)  # NaN is above everything


def filters_for(settings: Any) -> LogitsProcessorList:
    """transformers' own logits processors, in the order in which its `generate` applies them."""
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
