"""Packing: which rollouts share a pass, so that padding and repeated prompts cost little."""

import torch
from torch import Tensor


def pack(
    lengths: Tensor, prompts: Tensor, *, once: int, budget: int, overhead: int
) -> list[tuple[int, int]]:
    """The cheapest cut of rollouts, sorted by falling length, into parts (start, stop).

    A part costs its rows times its longest completion, the prompts in it, and `overhead` tokens for
    being a part at all. lengths, prompts: [n] tokens of each completion and of its prompt; `once`:
    tokens of all distinct prompts, the most that a part's prompts can cost, 0 where prompts are
    not shared and so cost the same however they are cut. No part of several rows exceeds `budget`.
    """
    size = len(lengths)
    starts = torch.arange(size)
    longest = lengths.clamp(min=1)
    before = torch.cat([prompts.new_zeros(1), prompts.cumsum(dim=0)])
    best = torch.zeros(size + 1, dtype=torch.int64)
    previous = [0] * (size + 1)
    for stop in range(1, size + 1):
        rows = stop - starts[:stop]
        padded = rows * longest[:stop]
        cost = best[:stop] + padded + (before[stop] - before[:stop]).clamp(max=once) + overhead
        cost[(padded > budget) & (rows > 1)] = torch.iinfo(torch.int64).max
        previous[stop] = int(cost.argmin())
        best[stop] = cost[previous[stop]]
    parts, stop = [], size
    while stop:
        parts.append((previous[stop], stop))
        stop = previous[stop]
    return parts[::-1]
