"""The objective against the exact expected reward of a policy small enough to enumerate."""

from itertools import product

import pytest
import torch

from groupwise import objective
from groupwise.advantages import group_relative
from groupwise.algorithms.dr_grpo import DrGRPO
from groupwise.algorithms.grpo import GRPO

REWARDS = [1.0, -0.5, 0.25, 2.0, 0.0, 0.75, -1.25]


def enumerated(lab, **shape):
    """A policy, all its completions as rollouts, their rewards, and log-probs with gradient."""
    policy = lab.Tabular(prompts=1, **shape)
    chosen = list(policy.completions())
    rollouts = lab.build(lab.rows(1) * len(chosen), chosen)
    rewards = torch.tensor(REWARDS[: len(chosen)], dtype=torch.float64)
    assert len(rewards) == len(chosen)
    log_probs = policy(rollouts).log_probs
    joint = log_probs.masked_fill(~rollouts.mask, 0.0).sum(dim=1)
    return policy, rollouts, rewards, log_probs, joint


def true_gradient(policy, rewards, joint):
    return torch.autograd.grad((joint.exp() * rewards).sum(), policy.table, retain_graph=True)[0]


SHAPES = [{"symbols": 2, "length": 3, "seed": 1}, {"symbols": 3, "length": 2}]


@pytest.mark.parametrize("shape", SHAPES)
def test_probabilities_sum_to_one(lab, shape):
    *_, joint = enumerated(lab, **shape)
    assert float(joint.detach().exp().sum()) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_expected_loss_gradient_is_minus_the_expected_rewards(lab, shape):
    """Advantages r - E[r], no scaling, constant weights: policy gradient, exactly."""
    policy, rollouts, rewards, log_probs, joint = enumerated(lab, **shape)
    chances = joint.exp().detach()
    advantages = rewards - (chances * rewards).sum()
    length = 4
    log_ratio = objective.token_log_ratio(log_probs, log_probs.detach(), rollouts.mask)
    per_decision = objective.clipped(log_ratio, advantages, low=0.2, high=0.2)
    # One rollout at a time: its weights are those of a batch of one.
    constant = torch.cat(
        [
            objective.weights(rollouts.mask[row : row + 1], normalize="constant", length=length)
            for row in range(len(rollouts))
        ]
    )
    loss = (chances * (per_decision * constant).sum(dim=1)).sum() * length
    found = torch.autograd.grad(loss, policy.table, retain_graph=True)[0]
    assert lab.gap(found, -true_gradient(policy, rewards, joint)) < 1e-10


@pytest.mark.parametrize(("shape", "size"), [(SHAPES[0], 2), (SHAPES[0], 4), (SHAPES[1], 2)])
def test_over_all_groups_it_is_the_true_gradient_but_for_one_in_g(lab, shape, size):
    """The group's own mean costs exactly 1/G of the gradient; the whole algorithm takes part."""
    policy, rollouts, rewards, log_probs, joint = enumerated(lab, **shape)
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
        chance = joint.detach()[index].sum().exp()
        total = total + chance * algorithm.loss(current, batch).sum()
    found = torch.autograd.grad(total * length, policy.table, retain_graph=True)[0]
    share = (size - 1) / size
    assert lab.gap(found, -share * true_gradient(policy, rewards, joint)) < 1e-10


def test_leave_one_out_differs_from_the_groups_mean_by_that_factor(lab):
    """r minus the mean of the others is G / (G - 1) times r minus the mean of all."""
    rewards = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64)
    found = group_relative(rewards, torch.zeros(4, dtype=torch.int64), scale="none")
    others = torch.stack([rewards[i] - rewards[torch.arange(4) != i].mean() for i in range(4)])
    torch.testing.assert_close(found, others * 3 / 4, rtol=1e-12, atol=1e-12)


def test_kl_in_the_loss_pulls_to_the_reference(lab):
    """With k2 and equal rewards the expected gradient is that of beta times the exact KL.

    Of a policy with one decision, where a rollout's KL is its decision's.
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
    chances = current.log_probs.detach().exp()
    found = torch.autograd.grad((chances * algorithm.loss(current, batch)).sum(), policy.table)[0]
    scores = policy.table[0, 0, 4].log_softmax(0)
    exact = torch.autograd.grad(0.5 * (scores.exp() * (scores - reference)).sum(), policy.table)[0]
    assert lab.gap(found, exact) < 1e-10
