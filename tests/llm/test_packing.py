"""Packing rollouts into passes: each exactly once, within the budget, at the lowest cost."""

import itertools

import pytest
import torch

from groupwise_llm import log_probs
from groupwise_llm.training.packing import pack


def tokens(rows, lengths, prompts, groups, padded):
    """The number of tokens in a pass over these rows, padding included."""
    if groups is None:
        return len(rows) * max(lengths[row] + prompts[row] for row in rows)
    if not padded:
        heads = {groups[row]: prompts[row] for row in rows}
        return sum(heads.values()) + sum(max(1, lengths[row]) for row in rows)
    heads = len({groups[row] for row in rows}) * max(prompts[row] for row in rows)
    return heads + len(rows) * max(1, *(lengths[row] for row in rows))


def every_split(order):
    for flags in itertools.product([0, 1], repeat=len(order) - 1):
        edges = [0, *(n + 1 for n, flag in enumerate(flags) if flag), len(order)]
        yield [order[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize(("shared", "padded"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("seed", range(4))
def test_no_split_is_cheaper(seed, shared, padded):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 40, (9,), generator=generator)
    groups = torch.randint(0, 3, (9,), generator=generator)
    prompts = torch.randint(1, 30, (3,), generator=generator)[groups]
    columns = (lengths.tolist(), prompts.tolist(), groups.tolist() if shared else None, padded)
    passes = pack(
        lengths,
        prompts,
        shared=groups.tolist() if shared else None,
        padded=padded,
        budget=120,
        overhead=10,
    )
    passes = [rows.tolist() for rows in passes]

    def cost(split):
        return sum(tokens(rows, *columns) + 10 for rows in split)

    def allowed(split):
        return all(len(rows) == 1 or tokens(rows, *columns) <= 120 for rows in split)

    keys = lengths if shared else lengths + prompts
    order = keys.argsort(descending=True, stable=True).tolist()
    if not padded:
        order.sort(key=groups.tolist().__getitem__)
    assert allowed(passes)
    assert [row for rows in passes for row in rows] == order
    assert cost(passes) == min(cost(split) for split in every_split(order) if allowed(split))


def test_the_budget_counts_prompts():
    lengths, prompts = torch.full((8,), 10), torch.full((8,), 100)
    separate = pack(lengths, prompts, shared=None, budget=440, overhead=1)
    assert [len(rows) for rows in separate] == [4, 4]
    one_group = pack(lengths, prompts, shared=[0] * 8, budget=180, overhead=1)
    assert [len(rows) for rows in one_group] == [8]
    several = pack(lengths, prompts, shared=[0] * 4 + [1] * 4, budget=180, overhead=1)
    assert [sorted(rows.tolist()) for rows in several] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_rollout_beyond_the_budget_has_its_own_pass():
    passes = pack(
        torch.tensor([4, 50, 4]), torch.tensor([1, 1, 1]), shared=None, budget=10, overhead=1
    )
    assert [rows.tolist() for rows in passes] == [[1], [0, 2]]


def test_no_rollouts_give_no_passes():
    empty = torch.zeros(0, dtype=torch.int64)
    assert pack(empty, empty, shared=None, budget=10, overhead=1) == []


def test_passes_on_a_cpu_are_limited_in_size(make, monkeypatch):
    policy = make(max_new_tokens=12)
    rollouts = policy.sample([{"prompt": "1+2"}], group_size=8, seeds=range(8))
    assert len(policy.microbatches(rollouts, 10_000, cut_decisions=True)) < 4
    monkeypatch.setattr(log_probs, "ENOUGH", 16)
    parts = policy.microbatches(rollouts, 10_000, cut_decisions=True)
    assert all(len(rows) * cut.stop <= 16 or len(rows) == 1 for rows, cut in parts)
    assert len(parts) >= 4


def test_a_long_prompt_on_a_cpu_is_shared_by_its_rollouts(make, monkeypatch):
    monkeypatch.setattr(log_probs, "ENOUGH", 48)
    policy = make(max_new_tokens=12)
    rollouts = policy.sample([{"prompt": "1+2=" * 15}], group_size=8, seeds=range(8))
    parts = policy.microbatches(rollouts, 10_000, cut_decisions=True)
    assert len(parts) <= 3
    # The budget still limits.
    assert len(policy.microbatches(rollouts, 50, cut_decisions=True)) == 8
