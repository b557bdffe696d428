"""Dealing: which process makes the passes of which rollouts, so that none waits for the fullest.

Groups are sampled and judged whole, each on one process, and completions differ in length: with
one group a process the fullest has several times the mean to do; and those whose advantage is 0
may get no pass at all. Advantages are computed over the rollouts of all processes, so the passes of
a rollout can be made anywhere.
"""

from collections.abc import Sequence

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from groupwise.kit import processes
from groupwise.learning.share import Share

Costs = tuple[Sequence[float], Sequence[int]]
"""Of the rollouts of a process: what the passes of each cost, and the number of its draw."""
WORTH = 0.02
"""Rollouts move only if the fullest process then has at least this share less to do."""


def places(costs: Sequence[Sequence[float]]) -> list[list[int]]:
    """For each rollout of each process, the process that makes its passes.

    The most expensive rollouts first: each stays where it was sampled if it costs nothing or that
    process has then no more than the mean to do, or else goes to the one that has least; Graham's
    rule of the longest processing time (SIAM J. Appl. Math. 17, 1969). costs: of each rollout of
    each process.
    """
    mean = sum(map(sum, costs)) / len(costs)
    loads, chosen = [0.0] * len(costs), [[0] * len(row) for row in costs]
    every = [(-cost, home, at) for home, row in enumerate(costs) for at, cost in enumerate(row)]
    for minus, home, at in sorted(every):
        fits = not minus or loads[home] - minus <= mean * (1 + 1e-9)
        process = home if fits else min(range(len(loads)), key=loads.__getitem__)
        loads[process] -= minus
        chosen[home][at] = process
    return chosen


def loads(costs: Sequence[Sequence[float]], chosen: Sequence[Sequence[int]]) -> list[float]:
    """What each process has to do if rollouts are dealt so."""
    sums = [0.0] * len(costs)
    for row, where in zip(costs, chosen, strict=True):
        for cost, process in zip(row, where, strict=True):
            sums[process] += cost
    return sums


def dealt(
    share: Share, costs: Tensor, parts: Sequence[Tensor], accelerator: Accelerator
) -> tuple[Share, float]:
    """The rollouts whose passes this process makes, of those of all processes, and how much the
    fullest process has to do, over the mean. A collective.

    share: sampled here; costs: [B], of its rollouts; parts: the draws of each update, at whose end
    processes wait for each other.
    """
    rank = accelerator.process_index
    every: list[Costs] = gather_object([(costs.tolist(), share.draws.tolist())])
    chosen, slowest = _chosen(every, parts)
    where = torch.tensor(chosen[rank], dtype=torch.int64)
    if all(process == home for home, row in enumerate(chosen) for process in row):
        return share, slowest
    rows = [(where == process).nonzero().flatten() for process in range(len(every))]
    sent = [None if n == rank else share.select(rows[n]).packed() for n in range(len(every))]
    received = [part for part in processes.exchange(sent) if part is not None]
    others = [part.unpacked(there, accelerator.device) for part, there in received if len(part)]
    return Share.concat([share.select(rows[rank]), *others]), slowest


def _chosen(every: Sequence[Costs], parts: Sequence[Tensor]) -> tuple[list[list[int]], float]:
    """For each rollout of each process the one that makes its passes; and the fullest process's
    load over the mean, of all updates together."""
    chosen = [[home] * len(costs) for home, (costs, _) in enumerate(every)]
    most = total = 0.0
    for part in parts:
        draws = {*part.tolist()}
        rows = [[at for at, draw in enumerate(own) if draw in draws] for _, own in every]
        costs = [[own[at] for at in ats] for (own, _), ats in zip(every, rows, strict=True)]
        here = [[home] * len(ats) for home, ats in enumerate(rows)]
        there = places(costs)
        if max(loads(costs, there)) > (1 - WORTH) * max(loads(costs, here)):
            there = here
        for home, ats in enumerate(rows):
            for at, process in zip(ats, there[home], strict=True):
                chosen[home][at] = process
        most, total = most + max(loads(costs, there)), total + sum(map(sum, costs))
    return chosen, most * len(every) / total if total else 1.0


def at_home(share: Share, values: Tensor, accelerator: Accelerator) -> list[tuple[int, float]]:
    """Values [B] of a share, each on the process that sampled its rollout: (place, value). A
    collective."""
    parts: list[list[tuple[int, float]]] = [[] for _ in range(accelerator.num_processes)]
    for (process, place), value in zip(share.homes.tolist(), values.tolist(), strict=True):
        parts[process].append((place, value))
    return [pair for part in processes.exchange(parts) for pair in part]
