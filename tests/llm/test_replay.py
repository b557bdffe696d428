"""The log-probs of a replayed completion are its own, also after a checkpoint is loaded."""

from dataclasses import replace

import torch
from tests.calls import fill
from tests.core.conftest import replay_of

from groupwise.rewards import Scores

ROWS = [{"prompt": "two and two"}, {"prompt": "and three"}]


def scores_of(values):
    values = torch.tensor(values, dtype=torch.float64)
    nothing = torch.zeros(len(values), dtype=torch.bool)
    return Scores(names=("reward",), weights=(1.0,), values=values.unsqueeze(1), failed=nothing)


def test_a_replayed_completion_has_its_own_log_probs(make, reloaded, rounding):
    policy = make()
    replay, loaded = (replay_of(len) for _ in range(2))

    def sampled(seeds, version):
        rollouts = policy.sample(ROWS, group_size=3, seeds=seeds)
        return replace(rollouts, versions=torch.full((6,), version))

    first = sampled(range(6), 0)
    fill(replay, first, scores_of([0, 1, 0, 0, 0, 1]), 0)
    loaded.load_state_dict(reloaded(replay.state_dict()))
    filled = fill(loaded, sampled(range(6, 12), 1), scores_of([0] * 6), 1)
    assert filled.replayed.tolist() == [False, False, True] * 2
    with torch.no_grad():
        original, replayed = policy(first).log_probs, policy(filled.rollouts).log_probs
    for row, source in ((2, 1), (5, 5)):
        length = int(first.extents[source])
        assert int(filled.rollouts.extents[row]) == length
        rounding.same(
            lambda at=(source, length): policy(first).log_probs[at[0], : at[1]],
            *(replayed[row, :length], original[source, :length]),
        )
        sampler = filled.rollouts.sampler_log_probs[row, :length]
        assert torch.equal(sampler, first.sampler_log_probs[source, :length])
