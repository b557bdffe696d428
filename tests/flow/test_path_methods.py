"""Flow-DPPO, Flash-GRPO and TempFlow against restatements, and the policy's step weights."""

from itertools import pairwise

import pytest
import torch
from tests.flow.test_algorithm import steps_of

from groupwise.kit.errors import UserError
from groupwise_flow.algorithms.flash_grpo import FlashGRPO
from groupwise_flow.algorithms.flow_dppo import FlowDPPO
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.algorithms.tempflow import TempFlow
from groupwise_flow.passes.transitions import relative
from groupwise_flow.process.windows import Window

ONE_STEP = {"kind": "random", "size": 1, "until": 1.0}


@pytest.mark.parametrize("limit", [1e-9, 5e-3, 1e9])
def test_flow_dppo_drops_steps_that_move_further_away(limit):
    current, batch, _ = steps_of()
    method = FlowDPPO(FlowDPPO.Config(max_divergence=limit))
    loss = method.loss(current, batch)
    expected, dropped = torch.zeros(3, 2, dtype=torch.float64), 0
    for i in range(3):
        for j in range(2):
            advantage = float(batch["advantages"][i])
            log_ratio = float((current.log_probs[i, j] - batch["old_log_probs"][i, j]).detach())
            moved = (current.extra["mean"][i, j] - batch["old_mean"][i, j]).detach()
            std = float(current.extra["std"][i, j])
            divergence = float(moved.square().mean()) / (2 * std**2)
            widens = (log_ratio > 0) == (advantage > 0)
            if divergence >= limit and widens:
                dropped += 1
            else:
                expected[i, j] = -advantage * torch.tensor(log_ratio).double().exp() / 6
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-7, atol=0)
    assert int(method.measure(current, batch)["clip_fraction"].sum()) == dropped
    assert (dropped == 0) == (limit == 1e9)


def published_slope(sigma, after, level):
    """c of Flash-GRPO for Flow-SDE: sqrt(-dt) / g + g sqrt(-dt) (1 - sigma) / (2 sigma)."""
    length = sigma - after
    g = level * (sigma / (1 - torch.where(sigma == 1, after, sigma))).sqrt()
    return length.sqrt() / g + g * length.sqrt() * (1 - sigma) / (2 * sigma), g * length.sqrt()


def test_the_policy_gives_the_published_weights_of_steps(lab, rounding):
    policy = lab.policy(steps=6, window=ONE_STEP, noise_level=0.7)
    rollouts = policy.sample(
        [{"prompt": f"{letter} cat"} for letter in "abcdefgh"], group_size=1, seeds=list(range(8))
    )
    first = rollouts.tensor("first")
    slope, std = published_slope(policy.sigmas[:-1], policy.sigmas[1:], 0.7)
    inverse = 1 / slope[:-1]
    expected = (std[first], std[first] / std[:-1].mean(), (inverse.mean() / inverse)[first])
    names = ("std", "relative_std", "relative_slope")
    rounding.same(lambda: tuple(policy(rollouts).extra[name][:, 0] for name in names), expected)
    assert len(set(first.tolist())) > 2


@pytest.mark.parametrize("sde", ["cps", "dance"])
def test_the_slope_is_the_length_of_a_log_probs_gradient_by_the_velocity(lab, sde):
    """For a sample one std from its mean, by finite differences of the sampler's own formula."""
    config = lab.settings(steps=5, sde=sde, noise_level=0.3, window=ONE_STEP)
    sigmas = torch.linspace(1, 0, 6, dtype=torch.float64)
    slopes = []
    for sigma, after in pairwise(sigmas[:-1]):
        x, v = torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), 0.3, dtype=torch.float64)
        drawn = config.noise.move(v, x, sigma, after, noise=torch.ones_like(x)).next_sample
        above, below = (
            config.noise.move(v + d, x, sigma, after, next_sample=drawn).log_prob
            for d in (1e-5, -1e-5)
        )
        slopes.append(abs(float((above - below) / 2e-5)))
    expected = torch.tensor(slopes, dtype=torch.float64)
    expected = expected * (1 / expected).mean()
    torch.testing.assert_close(relative(sigmas, config)[1, :4], expected, rtol=1e-6, atol=0)
    assert Window(**ONE_STEP).decisions(5) == [0, 1, 2, 3]


@pytest.mark.parametrize(("kind", "power"), [(FlashGRPO, -1), (TempFlow, 1)])
def test_single_steps_weigh_the_clipped_surrogate_and_not_the_kl(kind, power):
    current, batch, _ = steps_of()
    weight = torch.tensor([[0.5, 2.0]] * 3, dtype=torch.float64)
    name = "relative_slope" if kind is FlashGRPO else "relative_std"
    current.extra[name] = weight
    plain = FlowGRPO(FlowGRPO.Config(beta=0.0)).loss(current, batch)
    pull = FlowGRPO(FlowGRPO.Config(beta=0.1)).kl(current, batch)
    loss = kind(kind.Config(beta=0.1)).loss(current, batch)
    torch.testing.assert_close(loss, plain * weight**power + 0.1 * pull * batch["weights"])


def test_settings_of_a_policy_that_do_not_fit_are_refused(lab):
    three = lab.settings(window={"kind": "random", "size": 3}, shared_noise=True)
    alone = lab.settings(window=ONE_STEP)
    for kind, config, message in (
        (FlashGRPO, three, r"window has 3; set policy.window: \{kind: random, size: 1\}"),
        (TempFlow, three, "window has 3"),
        (TempFlow, alone, "set policy.shared_noise: true"),
    ):
        with pytest.raises(UserError, match=message):
            kind(kind.Config()).check(config)
    FlashGRPO(FlashGRPO.Config()).check(alone)
    TempFlow(TempFlow.Config()).check(lab.settings(window=ONE_STEP, shared_noise=True))
