"""Spreading: completions are sampled by the processes that have fewest to sample, and come back.

A group is played and judged by one process. Where a completion takes as long alone as in its group
(`Policy.samples_apart`), other processes sample some of its completions, one by one, so that none
samples more than one more than another. A completion depends on its seed alone, wherever it is
sampled.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice, pairwise
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import Tensor

from groupwise.kit import processes
from groupwise.prompt_source import Row
from groupwise.record.gather import moved, on_accelerator
from groupwise.rollouts import Rollouts


class Wanted(NamedTuple):
    """A completion to sample. group_seed: of what its group shares."""

    row: Row
    seed: int
    group_seed: int


def spread(
    wanted: Sequence[Wanted], sample: Callable[[Sequence[Wanted], int], Rollouts | None]
) -> Rollouts | None:
    """The completions of these, in order; None for none. A collective.

    sample: samples some on this process, None for none. It is also told the most that any process
    samples, since those of a sharded policy must sample equally often.
    """
    counts = gather_object([len(wanted)])
    transfers, rank = moves(counts), PartialState().process_index
    kept = [count - sum(own) for count, own in zip(counts, transfers, strict=True)]
    most = max(own + sum(of) for own, of in zip(kept, zip(*transfers, strict=True), strict=True))
    ends = [*accumulate(transfers[rank], initial=kept[rank])]
    received = processes.exchange([wanted[start:end] for start, end in pairwise(ends)])
    sampled = sample([*wanted[: kept[rank]], *chain.from_iterable(received)], most)
    starts = [*accumulate(map(len, received), initial=kept[rank])]
    answers = [
        _packed(sampled.select(range(start, end))) if sampled is not None and end > start else None
        for start, end in pairwise(starts)
    ]
    returned = [_unpacked(*part) for part in processes.exchange(answers) if part is not None]
    if sampled is None or not wanted:
        return None
    return Rollouts.concat([sampled.select(range(kept[rank])), *returned])


def moves(counts: Sequence[int]) -> list[list[int]]:
    """How many completions each process leaves to each other one, so that the numbers to sample
    differ by one at most; as few as possible, and none leaves all.

    counts: how many each has.
    """
    least, more = divmod(sum(counts), len(counts))
    largest = sorted(range(len(counts)), key=lambda process: -counts[process])[:more]
    spare = [count - least - (process in largest) for process, count in enumerate(counts)]
    free = (process for process, own in enumerate(spare) for _ in range(-own))
    transfers = [[0] * len(counts) for _ in counts]
    for home, own in enumerate(spare):
        for process in islice(free, max(0, own)):
            transfers[home][process] += 1
    return transfers


def _packed(rollouts: Rollouts) -> tuple[Rollouts, frozenset[str], frozenset[str]]:
    """A copy to send, in CPU memory, without rows, and the names of the columns and of the facts
    that lie on the device."""
    facts = {name: [*column] for name, column in rollouts.facts.items()}
    there = frozenset(
        name for name, column in facts.items() for value in column if _is_elsewhere(value)
    )
    sent = replace(
        moved(rollouts, torch.device("cpu"), copy=True),
        prompts=[{}] * len(rollouts),
        completions=rollouts.completions,
        facts={name: [_on(value, "cpu") for value in column] for name, column in facts.items()},
    )
    return sent, on_accelerator(rollouts), there


def _unpacked(sent: Rollouts, columns: frozenset[str], facts: frozenset[str]) -> Rollouts:
    """The rollouts of which this was `_packed`, on this process's device."""
    device = PartialState().device
    return replace(
        moved(sent, device, only=columns),
        completions=sent.completions,
        facts={
            name: [_on(value, device) for value in column] if name in facts else column
            for name, column in sent.facts.items()
        },
    )


def _is_elsewhere(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type != "cpu"


def _on(value: Any, device: torch.device | str) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value
