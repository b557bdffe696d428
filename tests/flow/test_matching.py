"""AWM and ElboGRPO against restatements in numpy, and the likelihoods of `forward_process`."""

import numpy as np
import pytest
import torch
from tests.flow.test_nft import batch_of

from groupwise import LogProbs
from groupwise_flow.algorithms.awm import AWM
from groupwise_flow.algorithms.elbo_grpo import ElboGRPO
from groupwise_flow.forward_process import ForwardProcess
from groupwise_flow.policy import FlowPolicy


def matching_batch(advantages):
    """As `batch_of`, with what AWM and ElboGRPO read; log-probs have x0 weighting."""
    current, batch = batch_of(advantages)
    extra = {**current.extra}
    sigma = extra["sigma"].view(3, 2, 1, 1, 1)
    noise = (extra["noised"] - (1 - sigma) * extra["clean"]) / sigma
    target = extra["target_velocity"] = noise - extra["clean"]

    def log_probs(velocity):
        return -extra["sigma"].square() * (velocity - target).square().flatten(2).mean(dim=2)

    batch["old_velocity"] = extra["velocity"].detach() + 0.3 * batch["old_velocity"]
    batch["recent_velocity"] = batch["old_velocity"].flip(0)
    batch["old_log_probs"] = log_probs(batch["old_velocity"])
    batch["reference_log_probs"] = log_probs(batch["reference_velocity"])
    return LogProbs(log_probs=log_probs(extra["velocity"]), extra=extra), batch


def arrays(current, batch):
    """Everything as numpy, by name."""
    named = {**current.extra, **batch}
    return {name: value.detach().numpy() for name, value in named.items()}


def mean_square(one, other):
    return ((one - other) ** 2).mean(axis=(2, 3, 4))


@pytest.mark.parametrize(
    ("power", "clip", "beta", "recent"), [(0.25, 1.0, 0.003, 1.0), (1.0, 0.02, 0.5, 0.0)]
)
def test_awm_has_the_loss_of_its_authors(power, clip, beta, recent):
    current, batch = matching_batch([7.0, -2.0, 0.5])
    config = AWM.Config(power=power, clip_low=clip, beta=beta, recent_beta=recent)
    named = arrays(current, batch)

    def log_prob(velocity):
        error = mean_square(velocity, named["target_velocity"]) + 1e-10
        return -(error**power) * named["sigma"] / power

    ratio = np.exp(log_prob(named["velocity"]) - log_prob(named["old_velocity"]))
    relative = named["advantages"][:, None] / 5.0  # clipped by `targets`
    surrogate = np.maximum(-relative * ratio, -relative * np.clip(ratio, 1 - clip, 1 + clip))
    expected = surrogate + beta * mean_square(named["velocity"], named["reference_velocity"])
    expected += recent * mean_square(named["velocity"], named["recent_velocity"])
    loss = AWM(config).loss(current, batch)
    np.testing.assert_allclose(loss.detach().numpy(), expected / 6, rtol=1e-10)


def test_awm_has_the_gradient_of_weighted_matching_before_the_first_update():
    """At ratio 1: the gradient of A sigma |v - target|^2, as pretraining's times the advantage."""
    current, batch = matching_batch([4.0, -3.0, 0.0])
    velocity = current.extra["velocity"]
    batch["old_velocity"] = velocity.detach()
    method = AWM(AWM.Config(power=1.0, beta=0.0, recent_beta=0.0))
    (gradient,) = torch.autograd.grad(method.loss(current, batch).sum(), velocity)
    error = (velocity - current.extra["target_velocity"]).square().flatten(2).mean(dim=2)
    weighted = batch["advantages"].unsqueeze(1) / 5 * current.extra["sigma"] * error / 6
    (expected,) = torch.autograd.grad(weighted.sum(), velocity)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-15)
    assert not bool(method.active({"weights": torch.ones(1, 2), "advantages": torch.zeros(1)}))


@pytest.mark.parametrize("most", [None, 1.01])
def test_elbo_grpo_has_one_ratio_per_image_and_a_limit_for_bad_ones(most):
    current, batch = matching_batch([0.9, -1.0, -0.2])
    named = arrays(current, batch)
    low = 0.05
    method = ElboGRPO(ElboGRPO.Config(clip_low=low, most_error=most, beta=0.1))
    log_probs = current.log_probs.detach().numpy()
    ratio = np.exp((log_probs - named["old_log_probs"]).mean(axis=1, keepdims=True))
    advantages = named["advantages"][:, None]
    surrogate = -np.minimum(ratio * advantages, np.clip(ratio, 1 - low, 1 + low) * advantages)
    surrogate = np.broadcast_to(surrogate, (3, 2)).copy()
    if most is not None:
        limited = (advantages < 0) & (-log_probs > -most * named["reference_log_probs"])
        assert 0 < limited.sum() < 4
        surrogate[limited] = 0.0
        metric = method.measure(current, batch)["limited"]
        np.testing.assert_array_equal(metric.numpy(), limited.astype(np.float32))
    expected = surrogate + 0.1 * mean_square(named["velocity"], named["reference_velocity"])
    loss = method.loss(current, batch)
    np.testing.assert_allclose(loss.detach().numpy(), expected / 6, rtol=1e-10)
    assert method.reference == {"velocity"} | ({"log_probs"} if most else set())
    assert method.outputs - FlowPolicy.provides == {"velocity", "sigma"}


@pytest.mark.parametrize(("likelihood", "power"), [("x0", 2), ("sigma", 1), ("velocity", 0)])
def test_log_probs_are_those_of_the_elbo(lab, likelihood, power, rounding):
    policy = lab.policy(kind=ForwardProcess, decisions=2, likelihood=likelihood)
    rollouts = policy.sample(lab.rows, group_size=2, seeds=[1, 2, 3, 4])
    outputs = policy(rollouts)
    extra = {name: value.double().detach() for name, value in outputs.extra.items()}
    error = (extra["velocity"] - extra["target_velocity"]).square().flatten(2).mean(dim=2)
    rounding.same(lambda: policy(rollouts).log_probs, -(extra["sigma"] ** power) * error)
    if likelihood == "x0":
        level = extra["sigma"].view(4, 2, 1, 1, 1)
        predicted = extra["noised"] - level * extra["velocity"]
        off = (predicted - extra["clean"]).square().flatten(2).mean(dim=2)
        rounding.same(lambda: policy(rollouts).log_probs, -off)


@pytest.mark.parametrize("sde", ["flow", "cps", "dance", "ddim"])
def test_any_sampler_of_the_other_policy_draws_the_same_images(lab, sde):
    """How a sample is drawn does not depend on what a decision is."""
    noise = {"sde": sde, "noise_level": 0.4}
    drawn = [
        lab.policy(**noise, **({} if kind is None else {"kind": kind})).sample(
            lab.rows, group_size=2, seeds=[1, 2, 3, 4]
        )
        for kind in (None, ForwardProcess)
    ]
    assert torch.equal(*(lab.images_of(rollouts) for rollouts in drawn))
    assert drawn[1].trajectory.keys() == {"latents", "seed", "sigma", "noise"}
