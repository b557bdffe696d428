"""The formulas of FlowGRPO and Guard, against closed forms and the papers' equations in float64."""

import math
from itertools import pairwise

import pytest
import torch
from pydantic import ValidationError
from torch.distributions import Normal, kl_divergence

import groupwise
from groupwise import LogProbs, Policy, Rollouts
from groupwise.advantages import group_relative
from groupwise.kit.errors import UserError
from groupwise.rewards import Scores
from groupwise_flow import sde
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.algorithms.flow_guard import FlowGuard


def algorithm(**config):
    return FlowGRPO(FlowGRPO.Config(**config))


def guard(**config):
    return FlowGuard(FlowGuard.Config(**config))


def rollouts_of(groups, steps=2):
    count = len(groups)
    return Rollouts(
        prompts=[{"prompt": "a cat"}] * count,
        completions=[None] * count,
        groups=torch.tensor(groups),
        mask=torch.ones(count, steps, dtype=torch.bool),
        truncated=torch.zeros(count, dtype=torch.bool),
    )


def steps_of(*, noise_level=0.7):
    """Three rollouts of two steps in float64: LogProbs, a batch, and the SDE's noise `g` [3, 2]."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    sigma = torch.tensor([[1.0, 0.9]] * 3, dtype=torch.float64)
    after = torch.tensor([[0.9, 0.7]] * 3, dtype=torch.float64)
    sampled, drawn = normal(3, 2, 2, 5), normal(3, 2, 2, 5)
    g = noise_level * (sigma / (1 - torch.where(sigma == 1, after, sigma))).sqrt()
    std = g * (sigma - after).sqrt()
    scale = std.view(3, 2, 1, 1)
    mean = (sampled + 0.1 * scale * normal(3, 2, 2, 5)).requires_grad_()
    sample = sampled + scale * drawn

    def log_prob(centre):
        return Normal(centre, scale).log_prob(sample).flatten(2).mean(dim=2)

    current = LogProbs(
        log_probs=log_prob(mean),
        extra={"mean": mean, "std": std, "interval": sigma - after},
    )
    batch = {
        "old_log_probs": log_prob(sampled),
        "old_mean": sampled,
        "reference_mean": sampled + 0.2 * scale * normal(3, 2, 2, 5),
        "mask": torch.ones(3, 2, dtype=torch.bool),
        "weights": torch.full((3, 2), 1 / 6, dtype=torch.float64),
        "advantages": torch.tensor([1.5, -0.5, -1.0], dtype=torch.float64),
    }
    return current, batch, g


# ---- advantages


@pytest.mark.parametrize("limit", [5.0, 1.0])
def test_advantages_are_clipped_on_both_sides(lab, limit):
    values = [0.0] * 39 + [1.0] + [1.0] * 39 + [0.0]
    rollouts = rollouts_of([0] * 40 + [1] * 40)
    scores = lab.scores_of(values)
    advantages = algorithm(advantage_clip=limit).targets(scores, rollouts, {})["advantages"]
    unclipped = group_relative(scores.total, rollouts.groups)
    assert float(unclipped.max()) > 6
    assert float(unclipped.min()) < -6
    torch.testing.assert_close(advantages, unclipped.clamp(-limit, limit).float())
    assert (float(advantages.max()), float(advantages.min())) == (limit, -limit)


def test_scale_batch_subtracts_the_mean_of_the_group_and_divides_by_the_std_of_the_batch(lab):
    values, groups = [0.0, 1.0, 5.0, 1.0, 2.0, 2.5], [0, 0, 0, 1, 1, 1]
    targets = algorithm(scale="batch").targets(lab.scores_of(values), rollouts_of(groups), {})
    std = torch.tensor(values, dtype=torch.float64).std()
    means = [2.0] * 3 + [5.5 / 3] * 3
    expected = [(v - m) / (float(std) + 1e-4) for v, m in zip(values, means, strict=True)]
    assert targets["advantages"].tolist() == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(targets["weights"], torch.full((6, 2), 1 / 12))


# ---- KL


def test_the_exact_kl_is_the_kl_of_the_two_gaussians():
    current, batch, _ = steps_of()
    scale = current.extra["std"].view(3, 2, 1, 1)
    expected = kl_divergence(
        Normal(current.extra["mean"], scale), Normal(batch["reference_mean"], scale)
    )
    kl = algorithm(beta=0.1).kl(current, batch)
    torch.testing.assert_close(kl, expected.flatten(2).mean(dim=2), rtol=1e-12, atol=0)
    torch.testing.assert_close(algorithm(beta=0.1).measure(current, batch)["kl"], kl)


def test_the_published_kl_divides_by_the_squared_noise_of_the_sde():
    current, batch, g = steps_of()
    squared_distance = (
        (current.extra["mean"] - batch["reference_mean"]).square().flatten(2).mean(dim=2)
    )
    kl = algorithm(beta=0.1, kl="published").kl(current, batch)
    torch.testing.assert_close(kl, squared_distance / (2 * g.square()), rtol=1e-12, atol=0)


def test_the_published_kl_is_a_25th_of_the_exact_one_at_the_first_of_ten_steps_of_sd3(lab):
    sigmas = lab.policy(steps=10).sigmas
    intervals = sigmas[:-1] - sigmas[1:]
    assert 1 / float(intervals[0]) == pytest.approx(25, abs=3)
    assert 1 / float(intervals[8]) == pytest.approx(3.7, abs=0.6)


@pytest.mark.parametrize("kl", ["exact", "published"])
def test_the_loss_is_the_clipped_objective_plus_beta_times_the_kl(kl):
    current, batch, _ = steps_of()
    flow_grpo = algorithm(beta=0.3, kl=kl, clip_low=0.01, clip_high=0.02)
    ratio = (current.log_probs - batch["old_log_probs"]).exp()
    a = batch["advantages"].unsqueeze(1)
    expected = -torch.minimum(ratio * a, ratio.clamp(0.99, 1.02) * a)
    expected = (expected + 0.3 * flow_grpo.kl(current, batch)) / 6
    torch.testing.assert_close(flow_grpo.loss(current, batch), expected, rtol=1e-12, atol=0)


# ---- Guard


def restated_guard(current, batch, low, high, beta):
    """The ratio of the paper and the loss of the authors' code, which does not rescale the KL."""
    extra, scale = current.extra, current.extra["std"]
    shift = (extra["mean"] - batch["old_mean"]).square().flatten(2).mean(dim=2)
    log_ratio = current.log_probs - batch["old_log_probs"]
    ratio = ((log_ratio + shift / (2 * scale**2)) * scale).exp()
    a = batch["advantages"].unsqueeze(1)
    loss = -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)
    distance = (extra["mean"] - batch["reference_mean"]).square().flatten(2).mean(dim=2)
    loss = loss / extra["interval"] + beta * distance / (2 * scale**2)
    return ratio, loss * batch["weights"]


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (1e-3, 2e-3)])
def test_guard_has_the_ratio_and_the_loss_of_the_paper(low, high, beta):
    current, batch, _ = steps_of()
    flow_guard = guard(clip_low=low, clip_high=high, beta=beta)
    ratio, loss = restated_guard(current, batch, low, high, beta)
    torch.testing.assert_close(
        flow_guard.log_ratio(current, batch).exp(), ratio, rtol=1e-12, atol=0
    )
    torch.testing.assert_close(flow_guard.loss(current, batch), loss, rtol=1e-12, atol=0)
    share = flow_guard.measure(current, batch)["clip_fraction"].mean()
    assert (float(share) > 0) == (high < 0.1)
    # The gradient flows through the distance of the means, too.
    (expected,) = torch.autograd.grad(loss.sum(), current.extra["mean"], retain_graph=True)
    (gradient,) = torch.autograd.grad(flow_guard.loss(current, batch).sum(), current.extra["mean"])
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-15)
    assert float(gradient.norm()) > 0


def test_the_mean_log_ratio_of_guard_is_0():
    """Averaged over noise and its negative; the plain log-ratio is negative on average."""
    plain, normalised = [], []
    for sign in (1, -1):
        current, batch, _ = steps_of()
        mean, scale = current.extra["mean"], current.extra["std"].view(3, 2, 1, 1)
        noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(5)).double()
        drawn = batch["old_mean"] + sign * scale * noise
        log_probs = [
            Normal(centre, scale).log_prob(drawn).flatten(2).mean(dim=2)
            for centre in (mean, batch["old_mean"])
        ]
        current = LogProbs(log_probs=log_probs[0], extra=current.extra)
        batch = {**batch, "old_log_probs": log_probs[1]}
        plain.append(algorithm().log_ratio(current, batch))
        normalised.append(guard().log_ratio(current, batch))
    assert (plain[0] + plain[1] < -1e-3).all()
    assert ((normalised[0] + normalised[1]).abs() < 1e-12).all()
    assert (normalised[0].abs() > 1e-5).all()


def test_the_ratio_of_guard_is_1_before_the_first_update(lab):
    policy = lab.policy(guidance=2.0)
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    current = policy(rollouts)
    batch = {
        "old_log_probs": current.log_probs.detach(),
        "old_mean": current.extra["mean"].detach(),
        "mask": rollouts.mask,
    }
    assert (guard().log_ratio(current, batch) == 0).all()


# ---- warnings


def test_a_warning_of_grpo_is_one_of_flow_grpo_too():
    flow_grpo, rollouts = algorithm(credit="turns"), rollouts_of([0, 0])
    scores = Scores(
        names=("reward",),
        weights=(1.0,),
        values=torch.tensor([[0.0], [1.0]]),
        failed=torch.zeros(2, dtype=torch.bool),
    )
    flow_grpo.observe(scores, rollouts)
    assert "turn_rewards" in flow_grpo.warning({})


def test_rounding_errors_above_the_clip_range_give_a_warning():
    flow_grpo = algorithm(clip_low=2e-4)
    assert flow_grpo.mismatch_limit == pytest.approx(2e-5)
    assert flow_grpo.warning({}) is None
    assert flow_grpo.warning({"log_prob_error": 1.9e-4}) is None
    assert (
        "differ from those in float32 by 3.0e-04, which is 1.5 times the clip range of 0.0002"
        in (flow_grpo.warning({"log_prob_error": 3e-4}))
    )


# ---- defaults, and what is needed of the policy


def test_defaults_of_the_configuration():
    config = FlowGRPO().config
    assert (config.clip_low, config.beta, config.advantage_clip) == (1e-4, 0.0, 5.0)
    assert (config.kl, FlowGRPO().clip_high) == ("exact", 1e-4)
    assert FlowGuard().config.model_dump() == config.model_dump()


@pytest.mark.parametrize(
    ("instance", "needs", "reference", "old"),
    [
        (algorithm(), set(), set(), set()),
        (algorithm(beta=0.1), set(), {"mean"}, set()),
        (algorithm(beta=0.1, kl="published"), {"interval"}, {"mean"}, set()),
        (guard(), {"interval"}, set(), {"mean"}),
        (guard(beta=0.1), {"interval"}, {"mean"}, {"mean"}),
    ],
)
def test_needed_outputs_follow_from_the_configuration(lab, instance, needs, reference, old):
    assert instance.needs == {"log_probs", "mean", "std", *needs}
    assert instance.reference == reference
    assert instance.old == {"log_probs", *old}
    assert instance.needs <= lab.policy().provides


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kl": "k3"}, "'exact' or 'published'"),
        ({"clip_low": 0.0}, "greater than 0"),
        ({"advantage_clip": 0.0}, "greater than 0"),
        ({"gaurd": True}, "Extra inputs"),
    ],
)
def test_invalid_configurations_are_refused(config, message):
    with pytest.raises(ValidationError, match=message):
        FlowGRPO.Config(**config)


class Numbers(Policy):
    """A policy with log-probs, but no means."""

    provides = frozenset({"log_probs"})

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        raise AssertionError("sampled")

    def forward(self, rollouts, decisions=slice(None)):
        raise AssertionError("evaluated")


@pytest.mark.parametrize("kind", ["cps", "dance"])
def test_the_published_kl_needs_the_published_sde(lab, kind):
    algorithm(beta=0.1, kl="published").check(lab.settings())
    algorithm(beta=0.1).check(lab.settings(sde=kind))
    algorithm(kl="published").check(lab.settings(sde=kind))
    algorithm(beta=0.1, kl="published").check(None)  # a policy without settings
    with pytest.raises(UserError, match=f"published goes with policy.sde: flow, found {kind}"):
        algorithm(beta=0.1, kl="published").check(lab.settings(sde=kind))


def evenness(lab, kind, level):
    """Largest over smallest gradient by the velocity of FlowGuard's surrogate, over nine steps."""
    sigmas = lab.policy(steps=10).sigmas.double()
    norms = []
    for sigma, after in pairwise(sigmas[:-1]):
        generator = torch.Generator().manual_seed(0)
        sample, velocity, noise = (
            torch.randn(1, 4096, generator=generator, dtype=torch.float64) for _ in range(3)
        )
        velocity.requires_grad_()
        options = {"kind": kind, "noise_level": level}
        step = sde.step(velocity, sample, sigma, after, noise=noise, **options)
        drawn = step.next_sample.detach()
        step = sde.step(velocity, sample, sigma, after, next_sample=drawn, **options)
        current = LogProbs(
            log_probs=step.log_prob.view(1, 1),
            extra={
                "mean": step.mean.unsqueeze(1),
                "std": step.std.view(1, 1),
                "interval": (sigma - after).view(1, 1),
            },
        )
        batch = {
            "old_log_probs": current.log_probs.detach(),
            "old_mean": current.extra["mean"].detach(),
            "advantages": torch.ones(1, dtype=torch.float64),
            "mask": torch.ones(1, 1, dtype=torch.bool),
        }
        (gradient,) = torch.autograd.grad(guard().surrogate(current, batch).sum(), velocity)
        norms.append(float(gradient.norm()))
    return max(norms) / min(norms)


def test_guard_is_refused_where_its_weights_do_not_even_out_the_steps(lab):
    """The reason and the refusal: with cps gradients of the nine steps differ by a factor of 2."""
    for kind, level in {"flow": 0.7, "dance": 0.3}.items():
        assert evenness(lab, kind, level) < 1.3
        guard().check(lab.settings(sde=kind, noise_level=level))
    assert evenness(lab, "cps", 0.8) > 2
    with pytest.raises(UserError, match=r"flow_guard divides .* set policy\.sde: flow or dance"):
        guard().check(lab.settings(sde="cps", noise_level=0.8))
    algorithm().check(lab.settings(sde="cps", noise_level=0.8))
    guard().check(None)  # a policy without settings


@pytest.mark.parametrize(
    "config", [{"name": "flow_grpo"}, {"name": "flow_grpo", "beta": 0.1}, {"name": "guard"}]
)
def test_a_policy_without_means_is_refused(lab, config, tmp_path):
    with pytest.raises(UserError, match=r"needs .*mean.*, which policy 'Numbers'"):
        groupwise.train(
            policy=Numbers(),
            algorithm=config,
            prompts=lab.rows,
            rewards=[lab.redness],
            evaluation={"prompts": 0},
            output=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_an_entropy_bonus_is_refused(lab, tmp_path):
    with pytest.raises(UserError, match="needs entropy, which policy 'FlowPolicy'"):
        groupwise.train(
            policy=lab.policy(),
            algorithm={"name": "flow_grpo", "entropy": 0.1},
            prompts=lab.rows,
            rewards=[lab.redness],
            evaluation={"prompts": 0},
            output=tmp_path / "run",
        )


def test_moving_every_dimension_by_a_tenth_of_std_changes_the_log_prob_by_0_005():
    """Log-probs are means over dimensions, hence the clip range of 1e-4."""
    mean = torch.zeros(1, 4, 64, 64)
    moved = sde.log_prob(mean + 0.1, mean, torch.tensor(1.0)) - sde.log_prob(
        mean, mean, torch.tensor(1.0)
    )
    assert math.isclose(float(moved), -0.005, rel_tol=1e-3)
