"""Groups whose rewards differ by noise alone: `least_std`."""

import pytest
import torch
from tests.six_rollouts import GROUPS, NOISE, dead_by_noise, rollouts

from groupwise.rewards import Scores
from groupwise_algorithms.dapo import DAPO
from groupwise_algorithms.dr_grpo import DrGRPO
from groupwise_algorithms.gdpo import GDPO
from groupwise_algorithms.reinforce_pp_baseline import ReinforcePPBaseline
from groupwise_algorithms.rloo import RLOO


@pytest.mark.parametrize("kind", [DrGRPO, RLOO, DAPO, GDPO, ReinforcePPBaseline])
def test_a_group_that_differs_by_noise_is_dead(kind):
    dead_by_noise(kind)


def test_gdpo_compares_the_std_of_each_reward_with_the_floor():
    """Noise of one reward is left out, whatever its weight, and the other reward still teaches."""
    both = torch.tensor([NOISE, [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]], dtype=torch.float64).T
    values = Scores(
        names=("noisy", "clear"),
        weights=(100.0, 1.0),
        values=both,
        failed=torch.zeros(6, dtype=torch.bool),
    )
    algorithm = GDPO(GDPO.Config(least_std=0.01))
    first = algorithm.relative(values, rollouts())[GROUPS == 0]
    clear = torch.tensor([-1.0, 0.5, 0.5], dtype=torch.float64)
    assert torch.allclose(first / first[1], clear / clear[1])
