"""The log-probs of a replayed image are its own, also after a checkpoint is loaded."""

from dataclasses import replace

import pytest
import torch
from tests.calls import fill
from tests.core.conftest import replay_of


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_a_replayed_image_has_its_own_log_probs(lab, guidance, reloaded, rounding):
    """With guidance the stored unconditional velocities are outdated and must not be reused."""
    settings = {"guidance": guidance, "window": {"kind": "random", "size": 2}}
    if guidance > 1:
        settings["guidance_gradient"] = "conditional"
    policy, other = lab.policy(**settings), lab.policy(**settings)
    replay, loaded = (replay_of(len) for _ in range(2))

    def sampled(architecture, seeds, version):
        rollouts = architecture.sample(lab.rows, group_size=2, seeds=seeds)
        return replace(rollouts, versions=torch.full((4,), version))

    first = sampled(policy, range(4), 0)
    fill(replay, first, lab.scores_of([0, 1, 1, 0]), 0)
    loaded.load_state_dict(reloaded(replay.state_dict()))
    for changed in (policy, other):  # as after further updates, or in the resumed run
        lab.nudge(changed)
    filled = fill(loaded, sampled(other, range(4, 8), 1), lab.scores_of([0] * 4), 1)
    assert filled.replayed.tolist() == [False, True, False, True]
    with torch.no_grad():
        expected = policy(first).log_probs[[1, 2]]
        replayed = other(filled.rollouts).log_probs[[1, 3]]
    rounding.same(lambda: policy(first).log_probs[[1, 2]], replayed)
    assert not torch.equal(expected, first.sampler_log_probs[[1, 2]])
