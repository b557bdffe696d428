"""Packing: which rollouts share a pass, so that padding and repeated prompts cost little."""

from collections.abc import Sequence

import torch
from torch import Tensor

ENOUGH = 2048
"""Tokens that keep a CPU busy: more of them in a pass take memory, and no time less, but that a
prompt that is shared is computed in fewer passes."""
NEVER = torch.iinfo(torch.int64).max


def pack(
    lengths: Tensor, prompts: Tensor, *, groups: Tensor | None, budget: int, overhead: int
) -> Sequence[Tensor]:
    """The cheapest cut of rollouts, in the order of falling length, into passes: rows of each.

    A pass costs the tokens that it computes, padding included, and `overhead` for being one at all.
    lengths, prompts: [n] tokens of each completion and of its prompt. groups: [n] where a group's
    prompt is computed once in a pass, which then costs its rows times their longest completion,
    and its groups times their longest prompt; None where each row is computed whole, which costs
    the rows times the longest of prompt and completion together. No pass of several rows exceeds
    `budget`.
    """
    size = len(lengths)
    own = lengths.clamp(min=1) if groups is not None else prompts + lengths
    order = own.argsort(descending=True, stable=True)
    longest, heads = own[order], prompts[order]
    which = None if groups is None else groups[order].tolist()
    best = torch.zeros(size + 1, dtype=torch.int64)
    previous = [0] * (size + 1)
    starts = torch.arange(size)
    # Of the part from each start to the present stop: its groups and its longest prompt.
    distinct, widest = torch.zeros_like(starts), torch.zeros_like(starts)
    latest: dict[int, int] = {}
    for stop in range(1, size + 1):
        rows = stop - starts[:stop]
        tokens = rows * longest[:stop]
        if which is not None:
            # Parts that begin after the group's last row have not seen its prompt.
            distinct[latest.get(which[stop - 1], -1) + 1 : stop] += 1
            latest[which[stop - 1]] = stop - 1
            widest[:stop] = widest[:stop].clamp(min=heads[stop - 1])
            tokens = tokens + distinct[:stop] * widest[:stop]
        cost = best[:stop] + tokens + overhead
        cost[(tokens > budget) & (rows > 1)] = NEVER
        previous[stop] = int(cost.argmin())
        best[stop] = cost[previous[stop]]
    parts, stop = [], size
    while stop:
        parts.append(order[previous[stop] : stop])
        stop = previous[stop]
    return parts[::-1]
