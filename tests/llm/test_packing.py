"""Which rollouts share a pass: all of them once, within the budget, as cheaply as any other cut."""

import itertools

import pytest
import torch

from groupwise_llm.packing import pack


def cost(parts, lengths, prompts, once, overhead):
    total = 0
    for start, stop in parts:
        total += (
            (stop - start) * max(1, lengths[start]) + min(once, sum(prompts[start:stop])) + overhead
        )
    return total


def every_cut(size):
    for flags in itertools.product([0, 1], repeat=size - 1):
        edges = [0, *(n + 1 for n, flag in enumerate(flags) if flag), size]
        yield list(itertools.pairwise(edges))


@pytest.mark.parametrize("seed", range(6))
def test_no_cut_is_cheaper(seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 40, (9,), generator=generator).sort(descending=True).values
    prompts = torch.randint(1, 30, (9,), generator=generator)
    settings = {"once": 35, "overhead": 10}
    parts = pack(lengths, prompts, budget=90, **settings)

    def allowed(cut):
        return all(b - a == 1 or (b - a) * max(1, int(lengths[a])) <= 90 for a, b in cut)

    best = min(
        cost(cut, lengths.tolist(), prompts.tolist(), **settings)
        for cut in every_cut(9)
        if allowed(cut)
    )
    assert allowed(parts)
    assert [row for a, b in parts for row in range(a, b)] == list(range(9))
    assert cost(parts, lengths.tolist(), prompts.tolist(), **settings) == best


def test_equal_lengths_stay_together():
    assert pack(torch.full((8,), 10), torch.full((8,), 5), once=20, budget=1000, overhead=1) == [
        (0, 8)
    ]


def test_a_rollout_beyond_the_budget_goes_alone():
    parts = pack(torch.tensor([50, 4, 4]), torch.tensor([1, 1, 1]), once=0, budget=10, overhead=1)
    assert parts == [(0, 1), (1, 3)]


def test_nothing_to_pack():
    empty = torch.zeros(0, dtype=torch.int64)
    assert pack(empty, empty, once=0, budget=10, overhead=1) == []
