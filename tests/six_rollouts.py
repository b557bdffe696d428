"""Six rollouts of two groups, for formulas that are written again in plain Python."""

import math

import torch

from groupwise import LogProbs, Rollouts
from groupwise.rewards import Scores

NAN = math.nan
MASK = torch.tensor(
    [[1, 1, 1, 0], [1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]
).bool()
GROUPS = torch.tensor([0, 1, 0, 1, 1, 0])
REWARDS = [1.0, 0.5, 0.0, 2.0, 0.0, NAN]
ROWS, POSITIONS = range(MASK.shape[0]), range(MASK.shape[1])
NOISE = [0.970, 0.0, 0.971, 0.5, 1.0, 0.969]
"""Rewards that differ by noise in group 0, and by more in group 1."""


def rollouts(mask=MASK, groups=GROUPS):
    return Rollouts(
        prompts=[{"prompt": ""}] * len(mask),
        completions=[None] * len(mask),
        groups=groups,
        mask=mask,
        truncated=torch.zeros(len(mask), dtype=torch.bool),
    )


def scores(values=REWARDS, steps=None, **columns):
    table = torch.tensor([values, *columns.values()], dtype=torch.float64).T
    return Scores(
        names=("reward", *columns),
        weights=(1.0, *[0.5 for _ in columns]),
        values=table,
        failed=torch.zeros(len(table), dtype=torch.bool),
        steps=steps,
    )


def tensors(seed=0, count=3):
    generator = torch.Generator().manual_seed(seed)
    old, *others = (
        torch.randn(MASK.shape, generator=generator, dtype=torch.float64) for _ in range(count)
    )
    return (old - 3, *[old - 3 + 0.5 * other for other in others])


def per_decision(function):
    """[B, T] of function(row, position), 0 outside the mask."""
    return torch.tensor(
        [[function(row, t) if MASK[row, t] else 0.0 for t in POSITIONS] for row in ROWS],
        dtype=torch.float64,
    )


def held_to_its_formula(algorithm, formula, *, fixed_ratio=False):
    """Surrogate and gradient of an algorithm equal a formula and its finite differences.

    formula: the loss of a decision by its ratio, advantage and log-prob, and the product of its
    completion's ratios; fixed_ratio: it is no part of the gradient.
    """
    old, new = tensors(count=2)
    decision_advantages = tensors(2)[0] + 3

    def loss_at(row, t, log_prob, fixed):
        """The loss of a decision with this log-prob; fixed: by the ratio of `new`."""
        ratio = math.exp((new[row, t] if fixed else log_prob) - old[row, t])
        product = math.exp(
            math.fsum(float(new[row, p] - old[row, p]) for p in POSITIONS if MASK[row, p])
        )
        return formula(ratio, float(decision_advantages[row, t]), log_prob, product)

    values = new.clone().requires_grad_()
    batch = {"old_log_probs": old, "mask": MASK, "advantages": decision_advantages}
    loss = algorithm.surrogate(LogProbs(log_probs=values), batch)
    expected = per_decision(lambda row, t: loss_at(row, t, float(new[row, t]), fixed_ratio))
    torch.testing.assert_close(
        torch.where(MASK, loss.detach(), 0.0), expected, rtol=1e-10, atol=1e-12
    )
    torch.where(MASK, loss, 0.0).sum().backward()
    step = 1e-6
    expected_gradient = per_decision(
        lambda row, t: (
            (
                loss_at(row, t, float(new[row, t]) + step, fixed_ratio)
                - loss_at(row, t, float(new[row, t]) - step, fixed_ratio)
            )
            / (2 * step)
        )
    )
    torch.testing.assert_close(values.grad, expected_gradient, rtol=1e-5, atol=1e-7)


def dead_by_noise(kind):
    """A group that differs by noise is as if its rewards were equal: it is refilled, counted, and
    has no advantage."""
    equal = [0.970 if group == 0 else value for value, group in zip(NOISE, GROUPS, strict=True)]
    for least, values in ((0.0, equal), (0.01, NOISE)):
        algorithm = kind(kind.Config(least_std=least))
        assert algorithm.no_signal(scores(values), rollouts()).tolist() == (GROUPS == 0).tolist()
    assert not kind(kind.Config(least_std=0.0)).no_signal(scores(NOISE), rollouts()).any()
    estimated = [
        kind(kind.Config(least_std=least)).estimate(scores(values), rollouts(), {})
        for least, values in ((0.0, equal), (0.01, NOISE))
    ]
    assert torch.equal(*estimated)
