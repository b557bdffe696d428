"""Losses of CISPO, SAPO, VESPO, LUSPO and GRPO-Guard, compared with formulas in plain Python."""

import math

import pytest
import torch
from pydantic import ValidationError
from tests.six_rollouts import MASK, held_to_its_formula, rollouts, scores, tensors

from groupwise import LogProbs
from groupwise_algorithms.cispo import CISPO
from groupwise_algorithms.guard import Guard
from groupwise_algorithms.luspo import LUSPO
from groupwise_algorithms.sapo import SAPO
from groupwise_algorithms.vespo import VESPO, vespo_weights


def test_cispo_is_its_formula():
    """The weight of a log-prob has no gradient, so finite differences keep it constant."""

    def formula(ratio, advantage, log_prob, _):
        return -max(0.7, min(1.5, ratio)) * advantage * log_prob

    algorithm = CISPO(CISPO.Config(clip_low=0.3, clip_high=0.5))
    held_to_its_formula(algorithm, formula, fixed_ratio=True)


def test_sapo_is_its_formula():
    def formula(ratio, advantage, *_):
        tau = 1.0 if advantage > 0 else 1.05
        return -advantage * 4 / tau / (1 + math.exp(-tau * (ratio - 1)))

    held_to_its_formula(SAPO(), formula)


def test_vespo_is_its_formula():
    """The weight has no gradient, as that of CISPO."""

    def formula(_, advantage, log_prob, product):
        k, decay = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
        phi = product**k * math.exp(decay * (1 - product))
        return -phi * advantage * log_prob

    held_to_its_formula(VESPO(), formula, fixed_ratio=True)


def test_the_logged_gate_is_the_factor_on_the_gradient_and_1_at_ratio_1():
    old, new = tensors(count=2)
    batch = {"old_log_probs": old, "mask": MASK, "advantages": tensors(2)[0]}
    values = new.clone().requires_grad_()
    SAPO().surrogate(LogProbs(log_probs=values), batch).sum().backward()
    gate = SAPO().clip_metrics(LogProbs(log_probs=new), batch)["gate"]
    ungated = -batch["advantages"] * (new - old).exp()
    torch.testing.assert_close(values.grad, torch.where(MASK, gate * ungated, 0.0))
    at_ratio_one = {**batch, "old_log_probs": new}
    for algorithm, name in ((SAPO(), "gate"), (VESPO(), "phi")):
        assert (algorithm.measure(LogProbs(log_probs=new), at_ratio_one)[name] == 1).all()


def test_phi_vanishes_at_extreme_ratios_and_is_never_nan():
    log_weight = torch.tensor([[-1e4, -30.0, 30.0, 1e4]])
    for sign in (1.0, -1.0):
        phi = vespo_weights(
            log_weight, torch.tensor([sign]), positive=(2.0, 3.0), negative=(3.0, 2.0)
        )
        assert phi.tolist() == [[0.0, pytest.approx(0.0, abs=1e-20), 0.0, 0.0]]


def test_vespo_corrects_for_another_sampler_within_its_weight():
    old, new, sampler = tensors()
    batch = {"old_log_probs": old, "mask": MASK, "advantages": torch.ones(6, dtype=torch.float64)}
    current = LogProbs(log_probs=new)
    corrected = VESPO().surrogate(current, {**batch, "sampler_log_probs": sampler})
    assert torch.equal(corrected, VESPO().surrogate(current, {**batch, "old_log_probs": sampler}))
    uncorrected = VESPO(VESPO.Config(importance="none"))
    assert torch.equal(
        uncorrected.surrogate(current, {**batch, "sampler_log_probs": sampler}),
        VESPO().surrogate(current, batch),
    )
    assert VESPO().importance({**batch, "sampler_log_probs": sampler}) is None


def test_luspo_is_gspo_times_the_length():
    weights = LUSPO().targets(scores(), rollouts(), {})["weights"]
    torch.testing.assert_close(weights, MASK.float() / len(MASK))


def test_guard_works_for_any_gaussian_policy():
    """Decisions of one number, as of a controller: loss and gradient in closed form."""
    old_mean, mean, actions = tensors()
    std = tensors(3)[0].abs() + 0.3
    mean = mean.clone().requires_grad_()

    def log_prob(centre):
        return torch.distributions.Normal(centre, std).log_prob(actions)

    rollout_advantages = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    batch = {"old_log_probs": log_prob(old_mean), "old_mean": old_mean, "mask": MASK}
    batch = {**batch, "advantages": rollout_advantages, "weights": MASK.double() / 6}
    current = LogProbs(log_probs=log_prob(mean), extra={"mean": mean, "std": std})
    ratio = (
        ((log_prob(mean) - log_prob(old_mean)) + (mean - old_mean) ** 2 / (2 * std**2)) * std
    ).exp()
    advantage = rollout_advantages.unsqueeze(1)
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    expected = torch.where(MASK, -surrogate / 6, 0.0)
    loss = Guard().loss(current, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-14)
    (gradient,) = torch.autograd.grad(loss.sum(), mean, retain_graph=True)
    (expected_gradient,) = torch.autograd.grad(expected.sum(), mean)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-14)
    assert Guard().outputs == {"log_probs", "mean", "std"}


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        (SAPO, {"clip_low": 0.2}, "Extra inputs are not permitted"),
        (CISPO, {"ratio_cap": 5.0}, "Extra inputs are not permitted"),
        (VESPO, {"importance_cap": 2.0}, "Extra inputs are not permitted"),
        (VESPO, {"importance": "token"}, "'sequence' or 'none'"),
    ],
)
def test_wrong_configurations_are_refused(kind, config, message):
    with pytest.raises(ValidationError, match=message):
        kind.Config(**config)
