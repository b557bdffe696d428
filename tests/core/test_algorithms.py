"""GRPO and its parts: advantages and losses, compared with loops in plain Python."""

import pytest
import torch
from pydantic import ValidationError
from tests.six_rollouts import (
    GROUPS,
    MASK,
    NAN,
    NOISE,
    ROWS,
    dead_by_noise,
    held_to_its_formula,
    rollouts,
    scores,
)

from groupwise import LogProbs, advantages, objective
from groupwise.algorithms.grpo import GRPO

# ---- advantages


def test_returns_to_go():
    returns = advantages.to_go(torch.tensor([[1.0, NAN, 2.0], [NAN, NAN, 4.0]]))
    assert returns.tolist() == [[3.0, 2.0, 2.0], [4.0, 4.0, 4.0]]


def test_a_group_that_differs_by_noise_is_dead():
    dead_by_noise(GRPO)


@pytest.mark.parametrize("supervision", ["rewards", "returns"])
@pytest.mark.parametrize("scale", ["group", "none"])
def test_the_floor_holds_for_step_rewards(supervision, scale):
    steps = torch.full(MASK.shape, NAN, dtype=torch.float64)
    steps[:, 0] = torch.tensor(NOISE, dtype=torch.float64)
    values = scores([NAN] * 6, steps=steps)
    options = {"steps": supervision, "scale": scale}
    without, with_floor = (GRPO(GRPO.Config(**options, least_std=least)) for least in (0.0, 0.01))
    assert not without.no_signal(values, rollouts()).any()
    assert with_floor.no_signal(values, rollouts()).tolist() == (GROUPS == 0).tolist()


def test_the_floor_leaves_verifiable_rewards_as_they_are():
    """The smallest std above 0 of rewards of 0 and 1 is 1 / sqrt(G)."""
    default = GRPO.Config().least_std
    for size in (2, 16, 1024):
        one_right = torch.eye(size, dtype=torch.float64)[0]
        groups = torch.zeros(size, dtype=torch.int64)
        assert float(advantages.group_std(one_right, groups)[0]) == pytest.approx(size**-0.5)
        left, right = (
            advantages.group_relative(one_right, groups, least_std=least)
            for least in (0.0, default)
        )
        assert torch.equal(left, right)


def test_returns_differ_if_the_number_of_equal_steps_differs():
    """Group 0: one or two steps with reward 1. Group 1: always a step with 1, then one with 0."""
    steps = torch.full(MASK.shape, NAN, dtype=torch.float64)
    for row in ROWS:
        steps[row, :2] = torch.tensor([1.0, 0.0] if GROUPS[row] else [1.0, 1.0])
    steps[2, 1] = NAN
    values = scores([NAN] * 6, steps=steps)
    algorithms = {name: GRPO(GRPO.Config(steps=name)) for name in ("rewards", "returns")}
    dead = {name: algorithm.no_signal(values, rollouts()) for name, algorithm in algorithms.items()}
    assert dead["rewards"].tolist() == (GROUPS == 0).tolist()
    assert dead["returns"].tolist() == (GROUPS == 1).tolist()
    for name, algorithm in algorithms.items():
        active = algorithm.active(algorithm.targets(values, rollouts(), {}))
        assert not active[dead[name]].any()
        assert active[~dead[name]].any()


def test_advantage_clip_bounds_advantages_on_both_sides():
    algorithm = GRPO(GRPO.Config(advantage_clip=0.5, scale="none"))
    targets = algorithm.targets(scores(), rollouts(), {})
    assert targets["advantages"].tolist() == [0.5, pytest.approx(-1 / 3), -0.5, 0.5, -0.5, 0.0]


# ---- objectives


def capped(ratio, advantage, *_):
    ratio = min(ratio, 1.4)
    return -min(ratio * advantage, max(0.8, min(1.2, ratio)) * advantage)


def dual(ratio, advantage, *_):
    """As verl writes it."""
    plain = min(ratio * advantage, max(0.8, min(1.2, ratio)) * advantage)
    return -max(plain, 1.4 * advantage) if advantage < 0 else -plain


@pytest.mark.parametrize("formula", [capped, dual])
def test_the_capped_loss_and_its_gradient_match_both_formulas(formula):
    held_to_its_formula(GRPO(GRPO.Config(ratio_cap=1.4)), formula)


def test_is_clipped_marks_decisions_that_the_cap_leaves_without_gradient():
    log_ratio = torch.tensor([[0.5, 1.0, 1.3, 1.5, 5.0]] * 2, dtype=torch.float64).log()
    log_ratio.requires_grad_()
    rewards = torch.tensor([1.0, -1.0], dtype=torch.float64)
    limits = {"low": 0.2, "high": 0.2, "cap": 1.4}
    objective.clipped(log_ratio, rewards, **limits).sum().backward()
    cut = objective.is_clipped(log_ratio.detach(), rewards, **limits)
    assert torch.equal(cut, log_ratio.grad == 0)
    assert cut.tolist() == [[False, False, True, True, True], [True, False, False, True, True]]


# ---- Gaussians


@pytest.mark.parametrize("action_shape", [(), (5, 2)])
def test_the_exact_kl_is_that_of_normal_distributions(action_shape):
    generator = torch.Generator().manual_seed(0)
    mean, reference_mean = (
        torch.randn((2, 3, *action_shape), generator=generator).double() for _ in range(2)
    )
    std = torch.rand((2, 3), generator=generator).double() + 0.1
    broadcast_std = std.view(2, 3, *[1] * len(action_shape))
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, broadcast_std),
        torch.distributions.Normal(reference_mean, broadcast_std),
    )
    exact = exact.flatten(2).mean(dim=2) if action_shape else exact
    torch.testing.assert_close(objective.gaussian_kl(mean, reference_mean, std), exact)
    algorithm = GRPO(GRPO.Config(beta=0.1, kl="exact"))
    assert (algorithm.reference, algorithm.needs) == ({"mean"}, {"log_probs", "mean", "std"})
    current = LogProbs(log_probs=std, extra={"mean": mean, "std": std})
    torch.testing.assert_close(algorithm.kl(current, {"reference_mean": reference_mean}), exact)


# ---- wrong configurations


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ratio_cap": 1.2}, "ratio_cap must be more than 1 . clip_high = 1.2, found 1.2"),
        ({"ratio_cap": 1.25, "clip_high": 0.28}, "= 1.28, found 1.25"),
        ({"kl": "published"}, "'exact'"),
    ],
)
def test_wrong_configurations_are_refused(config, message):
    with pytest.raises(ValidationError, match=message):
        GRPO.Config(**config)
