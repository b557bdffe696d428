"""Advantages of groups, compared with loops in plain Python."""

import math

import pytest
import torch

from groupwise.advantages import group_mean, group_relative, group_std, group_sum, zero_variance

NAN = math.nan


def expected_advantages(rewards, groups, scale, epsilon):
    """The definition, one rollout at a time, in Python floats."""
    present = [not math.isnan(r) for r in rewards]
    batch = [r for r in rewards if not math.isnan(r)]

    def std(values):
        if len(values) < 2:
            return 0.0
        mean = math.fsum(values) / len(values)
        return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))

    advantages = []
    for reward, group, is_present in zip(rewards, groups, present, strict=True):
        if not is_present:
            advantages.append(0.0)
            continue
        members = [r for r, g, p in zip(rewards, groups, present, strict=True) if g == group and p]
        divisor = {"group": std(members), "batch": std(batch), "none": None}[scale]
        centred = reward - math.fsum(members) / len(members)
        advantages.append(centred if divisor is None else centred / (divisor + epsilon))
    return advantages


CASES = {
    "adjacent": ([1.0, 0.0, 0.5, 2.0, 2.5, -1.0], [0, 0, 0, 1, 1, 1]),
    "interleaved": ([1.0, 0.0, 0.5, 2.0, 2.5, -1.0], [7, -3, 7, -3, 7, -3]),
    "unequal sizes": ([1.0, 3.0, 0.5, 2.0, 9.0], [5, 5, 5, 2, 2]),
    "alone": ([1.0, 3.0, 0.5], [0, 1, 1]),
    "nan": ([1.0, NAN, 0.5, NAN, NAN, -1.0, 4.0], [0, 0, 0, 1, 2, 2, 2]),
    "large offset": ([1e6 + 1, 1e6, 1e6 + 0.5, 1e6 + 4], [1, 1, 0, 0]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("epsilon", [1e-4, 0.5])
def test_group_relative_matches_its_definition(case, scale, epsilon):
    rewards, groups = CASES[case]
    advantages = group_relative(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(groups),
        scale=scale,
        epsilon=epsilon,
    )
    expected = torch.tensor(
        expected_advantages(rewards, groups, scale, epsilon), dtype=torch.float64
    )
    torch.testing.assert_close(advantages, expected, rtol=1e-9, atol=1e-12)


def test_the_default_divisor_is_the_unbiased_std_of_the_group_plus_epsilon():
    rewards = torch.tensor([0.0, 1.0], dtype=torch.float64)
    advantages = group_relative(rewards, torch.tensor([0, 0]))
    assert advantages.tolist() == pytest.approx([-0.5 / (0.5**0.5 + 1e-4), 0.5 / (0.5**0.5 + 1e-4)])


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_group_whose_std_is_below_the_floor_has_no_advantages(scale):
    """Group 0 differs by noise. The other groups, and a std equal to the floor, are unaffected."""
    values = torch.tensor([0.970, 0.971, 0.969, 0.0, 1.0, 1.0, 0.3, 0.5], dtype=torch.float64)
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    without = group_relative(values, groups, scale=scale)
    with_floor = group_relative(values, groups, scale=scale, least_std=0.01)
    assert without[:3].any()
    assert not with_floor[:3].any()
    assert torch.equal(with_floor[3:], without[3:])
    at_the_floor = float(group_std(values, groups)[6])
    assert group_relative(values, groups, scale=scale, least_std=at_the_floor)[6:].all()
    assert not group_relative(values, groups, scale=scale, least_std=at_the_floor + 1e-9)[6:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_is_kept_and_the_input_not_changed(dtype):
    rewards = torch.tensor([1.0, NAN, 2.0], dtype=dtype)
    before = rewards.clone()
    assert group_relative(rewards, torch.tensor([0, 0, 0])).dtype == dtype
    assert torch.equal(rewards.nan_to_num(-9), before.nan_to_num(-9))


def test_a_missing_reward_is_not_a_reward_of_zero():
    groups = torch.zeros(3, dtype=torch.int64)
    advantages = group_relative(torch.tensor([1.0, NAN, 3.0]), groups, scale="none")
    assert advantages.tolist() == [-1.0, 0.0, 1.0]


def test_without_any_reward_advantages_are_zeros():
    advantages = group_relative(torch.tensor([NAN, NAN]), torch.tensor([0, 0]), scale="batch")
    assert advantages.tolist() == [0.0, 0.0]
    empty = torch.zeros(0)
    assert group_relative(empty, torch.zeros(0, dtype=torch.int64)).shape == (0,)
    assert zero_variance(empty, torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_scale_shift_and_order_of_rewards_do_not_matter():
    torch.manual_seed(0)
    rewards = torch.randn(12, dtype=torch.float64)
    groups = torch.arange(12) % 3
    advantages = group_relative(rewards, groups, epsilon=1e-12)
    shifted = group_relative(5 * rewards + groups, groups, epsilon=1e-12)
    torch.testing.assert_close(advantages, shifted, rtol=1e-9, atol=1e-9)
    order = torch.randperm(12)
    torch.testing.assert_close(
        advantages[order], group_relative(rewards[order], groups[order], epsilon=1e-12)
    )
    for group in range(3):
        assert abs(float(advantages[groups == group].sum())) < 1e-9
        assert float(advantages[groups == group].std()) == pytest.approx(1.0)


def test_wrong_shapes_and_an_unknown_scale_are_refused():
    rewards, groups = torch.zeros(4), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"\[2, 2\]"):
        group_relative(rewards.view(2, 2), groups)
    with pytest.raises(ValueError, match=r"\[4\] and \[3\]"):
        group_relative(rewards, groups[:3])
    with pytest.raises(ValueError, match="scale"):
        group_relative(rewards, groups, scale="std")


def test_zero_variance_is_exact_in_floating_point():
    # The computed mean of three times 0.1 is not 0.1; 1 and the next float are different rewards.
    next_float = math.nextafter(1.0, 2.0)
    rewards = torch.tensor(
        [0.1, 0.1, 0.1, 1.0, next_float, 1.0, NAN, NAN, 2.0, NAN], dtype=torch.float64
    )
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
    is_zero = zero_variance(rewards, groups)
    assert is_zero.tolist() == [True] * 3 + [False] * 3 + [True] * 4


def test_zero_variance_of_interleaved_groups_and_a_missing_reward():
    rewards = torch.tensor([1.0, 1.0, 1.0, 2.0, NAN, 1.0])
    groups = torch.tensor([9, 4, 9, 4, 9, 4])
    assert zero_variance(rewards, groups).tolist() == [True, False, True, False, True, False]


def test_sums_and_means_of_groups():
    groups = torch.tensor([7, 2, 7, 2, 5])
    assert group_sum(torch.tensor([1, 2, 3, 4, 5]), groups).tolist() == [4, 6, 4, 6, 5]
    rewards = torch.tensor([1.0, math.nan, 2.0, 4.0, math.nan])
    assert group_mean(rewards, groups).tolist() == [1.5, 4.0, 1.5, 4.0, 0.0]
    assert group_mean(rewards[:0], groups[:0]).tolist() == []
