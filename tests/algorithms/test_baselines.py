"""RLOO, MaxRL, OPO and pass@k: advantages in plain Python, expected gradients by enumeration."""

import math
import statistics
from itertools import combinations, product

import pytest
import torch
from pydantic import ValidationError

from groupwise import Rollouts
from groupwise.kit.errors import UserError
from groupwise.rewards import Scores
from groupwise_algorithms.maxrl import MaxRL
from groupwise_algorithms.opo import OPO
from groupwise_algorithms.pass_at_k import PassAtK, max_at_k
from groupwise_algorithms.rloo import RLOO, leave_one_out

NAN = math.nan
GROUPS = [0, 1, 0, 1, 1, 0, 0, 1, 1]
REWARDS = [1.0, 0.5, 0.0, 2.0, 0.0, NAN, 0.25, 0.5, 0.5]
LENGTHS = [1, 4, 3, 2, 4, 2, 0, 3, 1]


def rollouts(groups=GROUPS, lengths=None):
    lengths = torch.tensor(lengths or LENGTHS[: len(groups)])
    return Rollouts(
        prompts=[{"prompt": ""}] * len(groups),
        completions=[None] * len(groups),
        groups=torch.tensor(groups),
        mask=torch.arange(4) < lengths.unsqueeze(1),
        truncated=torch.zeros(len(groups), dtype=torch.bool),
    )


def scores(values=REWARDS):
    table = torch.tensor(values, dtype=torch.float64).unsqueeze(1)
    failed = torch.zeros(len(table), dtype=torch.bool)
    return Scores(names=("reward",), weights=(1.0,), values=table, failed=failed)


def others_of(row):
    """The rows of its group that have a reward, without itself."""
    return [
        o
        for o, group in enumerate(GROUPS)
        if o != row and group == GROUPS[row] and not math.isnan(REWARDS[o])
    ]


def advantages_of(algorithm, values=REWARDS, groups=GROUPS):
    return algorithm.advantages(scores(values), rollouts(groups), {}).tolist()


def judged():
    return [row for row, reward in enumerate(REWARDS) if not math.isnan(reward)]


def test_rloo_subtracts_the_mean_of_the_others():
    expected = [0.0] * len(REWARDS)
    for row in judged():
        expected[row] = REWARDS[row] - statistics.mean(REWARDS[o] for o in others_of(row))
    assert advantages_of(RLOO()) == pytest.approx(expected, abs=1e-12)
    single = torch.tensor([1.0, NAN, 2.0])
    assert leave_one_out(single, torch.tensor([0, 0, 1])).tolist() == [0.0, 0.0, 0.0]


def test_rloo_clips_advantages_on_both_sides():
    clipped = advantages_of(RLOO(RLOO.Config(advantage_clip=0.5)), [0.0, 0.0, 4.0], [0, 0, 0])
    assert clipped == [-0.5, -0.5, 0.5]


def test_opo_subtracts_the_mean_reward_of_decisions():
    expected = [0.0] * len(REWARDS)
    for row in judged():
        rewards = [REWARDS[o] for o in (row, *others_of(row)) for _ in range(LENGTHS[o])]
        expected[row] = REWARDS[row] - statistics.mean(rewards)
    assert advantages_of(OPO()) == pytest.approx(expected, abs=1e-12)
    # The sum over decisions is 0, and groups of equal rewards teach nothing, without rounding.
    assert sum(a * n for a, n in zip(expected, LENGTHS, strict=True)) == pytest.approx(0, abs=1e-12)
    assert not any(advantages_of(OPO(), [0.1 if g else 0.7 for g in GROUPS]))
    assert OPO().no_signal(scores([0.1] * 9), rollouts()).all()


def test_maxrl_divides_by_the_mean_of_the_group():
    algorithm = MaxRL(MaxRL.Config(epsilon=1e-3))
    expected = [0.0] * len(REWARDS)
    for row in judged():
        mean = statistics.mean([REWARDS[row], *(REWARDS[o] for o in others_of(row))])
        expected[row] = (REWARDS[row] - mean) / (mean + 1e-3)
    assert advantages_of(algorithm) == pytest.approx(expected, abs=1e-12)
    assert not any(advantages_of(algorithm, [0.0] * 9))


def test_maxrl_refuses_negative_rewards():
    with pytest.raises(UserError, match=r"must be at least 0, found -0\.5; leave out penalties"):
        advantages_of(MaxRL(), [1.0, -0.5, *[0.0] * 7])


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_pass_at_k_compares_sets_with_and_without_a_completion(k):
    expected = {name: [0.0] * len(REWARDS) for name in ("leave_one_out", "leave_two_out")}
    for row in judged():
        others = [REWARDS[o] for o in others_of(row)]
        size = min(k, len(others) + 1)  # groups have three and five rewards
        sets = [*combinations(others, size - 1)]
        if size > 1:
            gains = [max(REWARDS[row], *rest) - max(rest) for rest in sets]
            expected["leave_one_out"][row] = statistics.mean(gains)
        size = min(k, len(others))
        best = [max([REWARDS[row], *rest]) for rest in combinations(others, size - 1)]
        without = [max(rest) for rest in combinations(others, size)]
        expected["leave_two_out"][row] = statistics.mean(best) - statistics.mean(without)
    for baseline, values in expected.items():
        if k > 1 or baseline == "leave_two_out":
            algorithm = PassAtK(PassAtK.Config(k=k, baseline=baseline, least_std=0.0))
            assert advantages_of(algorithm) == pytest.approx(values, abs=1e-12)
    for group in (0, 1):
        of_group = [a for a, g in zip(expected["leave_two_out"], GROUPS, strict=True) if g == group]
        assert sum(of_group) == pytest.approx(0, abs=1e-12)


def test_pass_at_1_is_rloo():
    assert advantages_of(PassAtK(PassAtK.Config(k=1))) == pytest.approx(advantages_of(RLOO()))


def test_the_best_of_all_gets_what_it_is_better_than_the_second():
    algorithm = PassAtK(PassAtK.Config(k=5, baseline="leave_one_out"))
    group = [0] * 5
    assert advantages_of(algorithm, [0.5, 3.0, 1.0, 2.5, 0.0], group) == [0.0, 0.5, 0.0, 0.0, 0.0]
    # A second completion as good: neither is needed.
    assert not any(advantages_of(algorithm, [0.5, 3.0, 1.0, 3.0, 0.0], group))


@pytest.mark.parametrize(("baseline", "enough"), [("leave_one_out", 6), ("leave_two_out", 5)])
def test_a_group_with_so_many_right_that_one_more_is_not_missed_teaches_nothing(baseline, enough):
    """Where all sets of k, or of k - 1 with `leave_one_out`, have a right completion."""
    algorithm = PassAtK(PassAtK.Config(k=3, baseline=baseline))
    for right in range(8):
        values, dead = [1.0] * right + [0.0] * (7 - right), right == 0 or right >= enough
        missed = algorithm.no_signal(scores(values), rollouts([0] * 7, [1] * 7))
        assert missed.tolist() == [dead] * 7
        assert any(advantages_of(algorithm, values, [0] * 7)) != dead


def test_pass_at_k_needs_a_group_of_more_than_k():
    assert PassAtK(PassAtK.Config(k=4)).smallest_group == 5
    assert PassAtK(PassAtK.Config(k=4, baseline="leave_one_out")).smallest_group == 4
    with pytest.raises(ValidationError, match="must be at least 2, found 1; set baseline"):
        PassAtK.Config(k=1, baseline="leave_one_out")


def test_the_floor_holds_for_these_advantages():
    noisy = [0.970 + 0.001 * row if group else row for row, group in enumerate(GROUPS)]
    for kind in (MaxRL, OPO, PassAtK):
        dead = kind(kind.Config(least_std=0.01)).no_signal(scores(noisy), rollouts())
        assert dead.tolist() == [bool(group) for group in GROUPS]
        assert not kind(kind.Config(least_std=0.0)).no_signal(scores(noisy), rollouts()).any()


# ---- expected gradients, over all groups of a policy with three outcomes


def expected_gradient(rewards, size, advantages):
    """Of sum_i A_i log p_i, over all groups of that size; advantages: from rewards [n] to [n]."""
    logits = torch.tensor([0.3, -0.5, 0.1], dtype=torch.float64, requires_grad=True)
    log_p = logits.log_softmax(dim=0)
    total = torch.zeros((), dtype=torch.float64)
    for group in product(range(3), repeat=size):
        drawn = log_p[list(group)]
        weights = advantages(torch.tensor([rewards[o] for o in group], dtype=torch.float64))
        total = total + drawn.sum().exp().detach() * (weights * drawn).sum()
    return torch.autograd.grad(total, logits)[0]


def gradient_of(objective):
    """Of a function of the three probabilities."""
    logits = torch.tensor([0.3, -0.5, 0.1], dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(objective(logits.softmax(dim=0)), logits)[0]


@pytest.mark.parametrize(
    ("k", "baseline"),
    [
        *((k, "leave_one_out") for k in (2, 3, 4)),
        *((k, "leave_two_out") for k in (1, 2, 3)),
    ],
)
def test_pass_at_k_has_the_gradient_of_the_best_of_k(k, baseline):
    rewards, size = [0.0, 1.0, 2.5], 4

    def advantages(values):
        groups = torch.zeros(size, dtype=torch.int64)
        return max_at_k(values, groups, k=k, baseline=baseline)

    def best_of_k(p):
        draws = product(range(3), repeat=k)
        return sum(p[list(draw)].prod() * max(rewards[o] for o in draw) for draw in draws)

    gradient = expected_gradient(rewards, size, advantages) * k / size
    torch.testing.assert_close(gradient, gradient_of(best_of_k), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_maxrl_has_the_gradient_of_the_log_up_to_an_order(size):
    """-sum over j < G of (1 - p)^j / j, p the probability of a right answer."""
    rewards, algorithm = [0.0, 1.0, 0.0], MaxRL(MaxRL.Config(epsilon=1e-12))

    def advantages(values):
        return algorithm.relative(scores(values.tolist()), rollouts([0] * size, [1] * size))

    def expansion(p):
        return -sum((1 - p[1]) ** j / j for j in range(1, size))

    gradient = expected_gradient(rewards, size, advantages) / size
    torch.testing.assert_close(gradient, gradient_of(expansion), rtol=1e-9, atol=1e-12)
