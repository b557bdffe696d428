"""The loss has the gradient of the expected reward, computed over all rollouts of a tiny policy."""

from itertools import product

import pytest
import torch

from groupwise import objective
from groupwise.advantages import group_relative
from groupwise.algorithms.grpo import GRPO
from groupwise_algorithms.dr_grpo import DrGRPO

REWARDS = [1.0, -0.5, 0.25, 2.0, 0.0, 0.75, -1.25]


def enumerated(lab, **shape):
    """A policy, all its completions as rollouts, their rewards and log-probs.

    Log-probs have gradients: those of decisions, [B, T], and of whole completions, [B].
    """
    policy = lab.Tabular(prompts=1, **shape)
    chosen = list(policy.completions())
    rollouts = lab.build(lab.rows(1) * len(chosen), chosen)
    rewards = torch.tensor(REWARDS[: len(chosen)], dtype=torch.float64)
    assert len(rewards) == len(chosen)
    log_probs = policy(rollouts).log_probs
    completion_log_probs = log_probs.masked_fill(~rollouts.mask, 0.0).sum(dim=1)
    return policy, rollouts, rewards, log_probs, completion_log_probs


def true_gradient(policy, rewards, completion_log_probs):
    return torch.autograd.grad(
        (completion_log_probs.exp() * rewards).sum(), policy.table, retain_graph=True
    )[0]


SHAPES = [{"symbols": 2, "length": 3, "seed": 1}, {"symbols": 3, "length": 2}]


@pytest.mark.parametrize("shape", SHAPES)
def test_probabilities_sum_to_one(lab, shape):
    *_, completion_log_probs = enumerated(lab, **shape)
    assert float(completion_log_probs.detach().exp().sum()) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_expected_gradient_of_the_loss_is_minus_that_of_the_expected_reward(lab, shape):
    """With advantages r - E[r], not scaled, and constant weights: exactly the policy gradient."""
    policy, rollouts, rewards, log_probs, completion_log_probs = enumerated(lab, **shape)
    probabilities = completion_log_probs.exp().detach()
    advantages = rewards - (probabilities * rewards).sum()
    length = 4
    log_ratio = objective.token_log_ratio(log_probs, log_probs.detach(), rollouts.mask)
    per_decision = objective.clipped(log_ratio, advantages, low=0.2, high=0.2)
    # Each rollout has the weights of a batch of one.
    constant = torch.cat(
        [
            objective.weights(rollouts.mask[row : row + 1], normalize="constant", length=length)
            for row in range(len(rollouts))
        ]
    )
    loss = (probabilities * (per_decision * constant).sum(dim=1)).sum() * length
    gradient = torch.autograd.grad(loss, policy.table, retain_graph=True)[0]
    assert lab.gap(gradient, -true_gradient(policy, rewards, completion_log_probs)) < 1e-10


@pytest.mark.parametrize(("shape", "size"), [(SHAPES[0], 2), (SHAPES[0], 4), (SHAPES[1], 2)])
def test_over_all_groups_the_gradient_is_scaled_by_one_minus_one_over_g(lab, shape, size):
    """The expected gradient of Dr. GRPO over all groups of G is (G - 1)/G of the true one.

    The baseline is the mean of the group, which contains the rollout itself.
    """
    policy, rollouts, rewards, log_probs, completion_log_probs = enumerated(lab, **shape)
    length = 4
    algorithm = DrGRPO(DrGRPO.Config(length=length))
    total = torch.zeros((), dtype=torch.float64)
    for members in product(range(len(rollouts)), repeat=size):
        index = torch.tensor(members)
        group = lab.build(
            lab.rows(1) * size, [rollouts.trajectory["ragged"][m].tolist() for m in members]
        )
        group.groups.zero_()
        width = group.mask.shape[1]
        batch = {
            **algorithm.targets(lab.scores_of(rewards[index]), group, {}),
            "mask": group.mask,
            "old_log_probs": log_probs.detach()[index, :width],
        }
        current = policy(group)
        probability = completion_log_probs.detach()[index].sum().exp()
        total = total + probability * algorithm.loss(current, batch).sum()
    gradient = torch.autograd.grad(total * length, policy.table, retain_graph=True)[0]
    share = (size - 1) / size
    assert lab.gap(gradient, -share * true_gradient(policy, rewards, completion_log_probs)) < 1e-10


def test_the_mean_of_the_others_differs_from_that_of_the_group_by_this_factor(lab):
    """r minus the mean of the others is G / (G - 1) times r minus the mean of all."""
    rewards = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64)
    advantages = group_relative(rewards, torch.zeros(4, dtype=torch.int64), scale="none")
    leave_one_out = torch.stack(
        [rewards[i] - rewards[torch.arange(4) != i].mean() for i in range(4)]
    )
    torch.testing.assert_close(advantages, leave_one_out * 3 / 4, rtol=1e-12, atol=1e-12)


def test_kl_in_the_loss_has_the_gradient_of_the_exact_kl(lab):
    """With k2 and equal rewards, the expected gradient is that of beta * KL.

    The policy makes one decision, so the KL of a rollout is that of its decision.
    """
    policy = lab.Tabular(prompts=1, symbols=4, length=1)
    chosen = list(policy.completions())
    rollouts = lab.build(lab.rows(1) * 4, chosen)
    reference = policy.table.detach()[0, 0, 4].roll(1).log_softmax(0)
    current = policy(rollouts)
    algorithm = GRPO(GRPO.Config(beta=0.5, kl="k2"))
    batch = {
        "advantages": torch.zeros(4),
        "weights": torch.ones(4, 1),
        "mask": rollouts.mask,
        "old_log_probs": current.log_probs.detach(),
        "reference_log_probs": reference.unsqueeze(1),
    }
    probabilities = current.log_probs.detach().exp()
    expected_loss = (probabilities * algorithm.loss(current, batch)).sum()
    gradient = torch.autograd.grad(expected_loss, policy.table)[0]
    scores = policy.table[0, 0, 4].log_softmax(0)
    exact = torch.autograd.grad(0.5 * (scores.exp() * (scores - reference)).sum(), policy.table)[0]
    assert lab.gap(gradient, exact) < 1e-10
