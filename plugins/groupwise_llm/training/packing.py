"""Packing: which rollouts share a pass, so that little is spent on padding and repeated prompts."""

from collections.abc import Sequence

import torch
from torch import Tensor

ENOUGH = 2048
"""Tokens in a pass that keep a CPU busy: more would take memory and save no time, except that
shared prompts are computed in fewer passes."""
NEVER = torch.iinfo(torch.int64).max


def pack(
    lengths: Tensor,
    prompts: Tensor,
    *,
    shared: Sequence[int] | None,
    padded: bool = True,
    budget: int,
    overhead: int,
) -> Sequence[Tensor]:
    """Split rollouts, sorted by falling length, into the cheapest sequence of passes: rows of each.

    Minimises the sum over passes of (tokens + overhead), by dynamic programming. tokens, padding
    included, are rows * longest completion + different prompts * longest prompt where a pass
    computes equal prompts once, and rows * longest (prompt + completion) without `shared`. Not
    `padded`, rollouts are sorted by prompt first, and tokens are just those of the completions and
    the different prompts. Passes of several rows have at most `budget` tokens.

    lengths, prompts: [n] tokens of each completion and of its prompt; shared: the number of each
    rollout's prompt, the same for equal prompts, or None where prompts are not shared.
    """
    size = len(lengths)
    own = lengths.clamp(min=1) if shared is not None else prompts + lengths
    order = own.argsort(descending=True, stable=True)
    if shared is not None and not padded:
        order = order[torch.tensor(shared, dtype=torch.int64)[order].argsort(stable=True)]
    longest, heads = own[order], prompts[order]
    which = None if shared is None else [shared[row] for row in order.tolist()]
    best = torch.zeros(size + 1, dtype=torch.int64)
    previous = [0] * (size + 1)
    starts = torch.arange(size)
    # For the rows from each start to the current stop: number of different prompts, longest prompt,
    # tokens without padding.
    distinct, widest, exact = torch.zeros(3, size, dtype=torch.int64)
    latest: dict[int, int] = {}
    for stop in range(1, size + 1):
        rows = stop - starts[:stop]
        tokens = rows * longest[:stop]
        if which is not None:
            # Only for parts that begin after the previous row with this prompt is the prompt new.
            new = slice(latest.get(which[stop - 1], -1) + 1, stop)
            latest[which[stop - 1]] = stop - 1
            distinct[new] += 1
            exact[new] += heads[stop - 1]
            exact[:stop] += longest[stop - 1]
            widest[:stop] = widest[:stop].clamp(min=heads[stop - 1])
            tokens = tokens + distinct[:stop] * widest[:stop] if padded else exact[:stop].clone()
        cost = best[:stop] + tokens + overhead
        cost[(tokens > budget) & (rows > 1)] = NEVER
        previous[stop] = int(cost.argmin())
        best[stop] = cost[previous[stop]]
    parts, stop = [], size
    while stop:
        parts.append(order[previous[stop] : stop])
        stop = previous[stop]
    return parts[::-1]
