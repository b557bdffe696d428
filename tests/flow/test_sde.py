"""A denoising step: mean, std and log-prob against the formulas in float64, and marginals."""

import math
from itertools import pairwise

import pytest
import torch
from torch.distributions import Normal

from groupwise_flow import sde

STEPS = [(1.0, 0.9), (1.0, 0.4), (0.9, 0.85), (0.6, 0.3), (0.31, 0.02), (0.05, 0.0)]
LEVELS = {"flow": 0.7, "cps": 0.8, "dance": 0.3, "ddim": 0.9}
KINDS = [*LEVELS, "ode"]


def restated(kind, x, v, s, sigma_next, *, level):
    """Mean and std of the step from noise level `s`, for single numbers, as in the papers."""
    interval = s - sigma_next
    data, noise = x - s * v, x + (1 - s) * v
    if kind == "ode":
        return x - v * interval, 0.0
    if kind == "cps":
        std = sigma_next * math.sin(level * math.pi / 2)
        return (1 - sigma_next) * data + math.sqrt(sigma_next**2 - std**2) * noise, std
    if kind == "ddim":
        # Of samples a data + b noise with a^2 + b^2 = 1, arXiv:2010.02502, eq. 12 and 16.
        (a, b), (a_next, b_next) = (
            ((1 - each) / math.hypot(1 - each, each), each / math.hypot(1 - each, each))
            for each in (s, sigma_next)
        )
        std = level * b_next / b * math.sqrt(1 - (a / a_next) ** 2)
        norm = math.hypot(1 - sigma_next, sigma_next)
        mean = a_next * data + math.sqrt(b_next**2 - std**2) * noise
        return norm * mean, norm * std
    # An SDE's drift is v - g^2 / 2 times the score of the Gaussian around (1 - s) data.
    g = level if kind == "dance" else level * math.sqrt(s / (1 - (sigma_next if s == 1 else s)))
    if kind == "dance":
        score = -(x - (1 - s) * data) / s**2
        return x - (v - g**2 * score / 2) * interval, g * math.sqrt(interval)
    mean = x * (1 - g**2 * interval / (2 * s)) - v * (1 + g**2 * (1 - s) / (2 * s)) * interval
    return mean, g * math.sqrt(interval)


def tensors(*shape, dtype=torch.float64, count=3):
    generator = torch.Generator().manual_seed(4)
    drawn = torch.randn((count, *shape), generator=generator, dtype=torch.float64)
    return drawn.to(dtype).unbind()


def level(kind):
    return LEVELS.get(kind, 0.7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sigma", "sigma_next"), STEPS)
def test_mean_and_std_match_the_formula(kind, sigma, sigma_next):
    x, v, noise = tensors(2, 3, 4)
    step = sde.step(v, x, sigma, sigma_next, kind=kind, noise_level=level(kind), noise=noise)
    std = restated(kind, 0.0, 0.0, sigma, sigma_next, level=level(kind))[1]
    for index in [(0, 0, 0), (1, 2, 3), (0, 1, 2)]:
        numbers = float(x[index]), float(v[index])
        mean, _ = restated(kind, *numbers, sigma, sigma_next, level=level(kind))
        assert float(step.mean[index]) == pytest.approx(mean, rel=1e-12, abs=1e-14)
    assert float(step.std.flatten()[0]) == pytest.approx(std, rel=1e-12)
    assert (std > 0) == (kind != "ode" and not (kind in ("cps", "ddim") and sigma_next == 0))
    torch.testing.assert_close(step.next_sample, step.mean + std * noise, rtol=1e-12, atol=1e-14)
    assert step.mean.dtype == torch.float64


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_can_have_its_own_sigmas(kind):
    sigmas = torch.tensor([pair[0] for pair in STEPS], dtype=torch.float64)
    sigmas_next = torch.tensor([pair[1] for pair in STEPS], dtype=torch.float64)
    x, v, noise = tensors(len(STEPS), 5)
    together = sde.step(v, x, sigmas, sigmas_next, kind=kind, noise_level=level(kind), noise=noise)
    assert together.log_prob.shape == (len(STEPS),)
    for row, (sigma, sigma_next) in enumerate(STEPS):
        here = slice(row, row + 1)
        alone = sde.step(
            v[here],
            x[here],
            sigma,
            sigma_next,
            kind=kind,
            noise_level=level(kind),
            noise=noise[here],
        )
        for name in ("mean", "next_sample", "log_prob"):
            torch.testing.assert_close(getattr(together, name)[here], getattr(alone, name))
        assert float(together.std.flatten()[row]) == pytest.approx(float(alone.std.flatten()[0]))


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize(("sigma", "sigma_next"), STEPS[:-1])
def test_log_prob_is_the_mean_normal_log_density_over_dimensions(kind, sigma, sigma_next):
    x, v, noise, sample = tensors(3, 2, 4, count=4)
    drawn = sde.step(v, x, sigma, sigma_next, kind=kind, noise_level=level(kind), noise=noise)
    scored = sde.step(
        v, x, sigma, sigma_next, kind=kind, noise_level=level(kind), next_sample=sample
    )
    for step, value in [(drawn, drawn.next_sample), (scored, sample)]:
        assert torch.equal(step.next_sample, value)
        expected = Normal(step.mean, step.std).log_prob(value).flatten(1).mean(dim=1)
        torch.testing.assert_close(step.log_prob, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(drawn.mean, scored.mean)


def test_a_step_without_noise_has_log_prob_0():
    x, v, sample = tensors(2, 5)
    for next_sample in (None, sample):
        step = sde.step(v, x, 0.5, 0.2, kind="ode", next_sample=next_sample)
        assert step.log_prob.tolist() == [0.0, 0.0]
    last = sde.step(v, x, 0.5, 0.0, kind="cps", noise_level=0.8)
    assert last.log_prob.tolist() == [0.0, 0.0]
    assert torch.equal(last.next_sample, last.mean)
    # A row without noise beside one with noise.
    mixed = sde.step(v, x, 0.5, torch.tensor([0.0, 0.2]), kind="cps", noise_level=0.8, noise=v)
    assert mixed.log_prob[0] == 0
    assert mixed.log_prob[1] != 0


@pytest.mark.parametrize("kind", LEVELS)
def test_a_noise_level_of_0_gives_the_step_of_the_ode(kind):
    x, v, noise = tensors(2, 5)
    step = sde.step(v, x, 0.6, 0.4, kind=kind, noise_level=0.0, noise=noise)
    expected = sde.step(v, x, 0.6, 0.4, kind="ode").next_sample
    torch.testing.assert_close(step.next_sample, expected)


def test_noise_is_drawn_unless_it_is_passed():
    x, v, _ = tensors(2, 5)
    torch.manual_seed(3)
    drawn = sde.step(v, x, 0.6, 0.4, kind="flow")
    torch.manual_seed(3)
    noise = torch.randn_like(x)
    torch.testing.assert_close(drawn.next_sample, drawn.mean + drawn.std * noise)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_in_half_precision_are_computed_in_float32(kind):
    x, v, noise = tensors(2, 7, dtype=torch.bfloat16)
    low = sde.step(v, x, 0.6, 0.4, kind=kind, noise_level=level(kind), noise=noise)
    high = sde.step(
        v.float(), x.float(), 0.6, 0.4, kind=kind, noise_level=level(kind), noise=noise.float()
    )
    for name in ("next_sample", "log_prob", "mean", "std"):
        assert getattr(low, name).dtype == torch.float32
        assert torch.equal(getattr(low, name), getattr(high, name))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"velocity": torch.zeros(2, 4)}, r"velocity \[2, 4\] and sample \[2, 5\]"),
        ({"noise": torch.zeros(1, 5)}, r"noise \[1, 5\] and sample \[2, 5\]"),
        ({"next_sample": torch.zeros(5)}, r"next_sample \[5\] and sample \[2, 5\]"),
        ({"sigma": torch.tensor([0.6, 0.6, 0.6])}, "3 sigmas for 2 samples"),
        ({"kind": "euler"}, "kind must be .* received 'euler'"),
        ({"noise_level": -0.1}, "noise level must not be negative, received -0.1"),
        ({"kind": "cps", "noise_level": 1.1}, "noise level must be at most 1 for cps"),
        ({"sigma_next": 0.6}, "sigma_next must be below sigma"),
        ({"sigma_next": torch.tensor([0.5, 0.7])}, "sigma_next must be below sigma"),
    ],
)
def test_invalid_arguments_of_a_step_are_refused(changes, message):
    arguments = {"velocity": torch.zeros(2, 5), "sample": torch.zeros(2, 5)}
    with pytest.raises(ValueError, match=message):
        sde.step(**{**arguments, "sigma": 0.6, "sigma_next": 0.4, **changes})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sigma", "sigma_next"), STEPS)
def test_a_step_keeps_the_shares_of_data_and_noise(kind, sigma, sigma_next):
    """A step is linear in data and noise, so its effect on unit vectors of both gives the marginal:
    mean (1 - sigma_next) data, std sigma_next, up to the O(interval^2) error of the SDEs."""
    data, noise = torch.eye(2, dtype=torch.float64)
    x = (1 - sigma) * data + sigma * noise
    step = sde.step(
        (noise - data).unsqueeze(0),
        x.unsqueeze(0),
        sigma,
        sigma_next,
        kind=kind,
        noise_level=level(kind),
    )
    data_share, noise_share = step.mean[0].tolist()
    variance = noise_share**2 + float(step.std.flatten()[0]) ** 2
    assert data_share == pytest.approx(1 - sigma_next, rel=1e-12)
    interval, excess = sigma - sigma_next, 0.0
    if kind in ("flow", "dance"):
        rest = 1 - (sigma_next if sigma == 1 else sigma)
        squared = level(kind) ** 2 * (sigma / rest if kind == "flow" else 1)
        excess = squared * interval**2 / sigma + squared**2 * interval**2 / (4 * sigma**2)
        assert excess > 0
    assert variance == pytest.approx(sigma_next**2 + excess, rel=1e-12, abs=1e-15)


MEANS = torch.tensor([[2.0, 0.0], [-1.0, 1.0], [0.0, -2.0]], dtype=torch.float64)
SHARES = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
SPREAD = 0.4


def marginal_velocity(x, s):
    """E[noise - data | x] where the data is a mixture of Gaussians of std SPREAD."""
    variance = (1 - s) ** 2 * SPREAD**2 + s**2
    distance = x.unsqueeze(1) - (1 - s) * MEANS  # [n, components, 2]
    posterior = (
        (SHARES.log() - distance.square().sum(2) / (2 * variance)).softmax(dim=1).unsqueeze(2)
    )
    noise = s / variance * distance
    data = MEANS + (1 - s) * SPREAD**2 / variance * distance
    return (posterior * (noise - data)).sum(1)


@pytest.mark.parametrize(("kind", "noise_level"), [("flow", 0.7), ("dance", 1.0), ("ode", 0.0)])
def test_many_short_steps_keep_the_marginals(kind, noise_level):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 2, generator=generator, dtype=torch.float64)
    sigmas = torch.linspace(1, 0, 101, dtype=torch.float64).tolist()
    middle = None
    for sigma, sigma_next in pairwise(sigmas):
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        last = sigma_next == 0
        v = marginal_velocity(x, sigma)
        x = sde.step(
            v,
            x,
            sigma,
            sigma_next,
            kind="ode" if last else kind,
            noise_level=noise_level,
            noise=noise,
        ).next_sample
        if math.isclose(sigma_next, 0.5):
            middle = x
    mean = (SHARES.unsqueeze(1) * MEANS).sum(0)
    centred = MEANS - mean
    between = (SHARES.view(-1, 1, 1) * centred.unsqueeze(2) * centred.unsqueeze(1)).sum(0)
    covariance = between + SPREAD**2 * torch.eye(2, dtype=torch.float64)
    half_covariance = 0.25 * covariance + 0.25 * torch.eye(2, dtype=torch.float64)
    for samples, target in [(x, covariance), (middle, half_covariance)]:
        assert (samples.T.cov() - target).abs().max() < 0.05 * target.diagonal().max()
    assert (x.mean(0) - mean).abs().max() < 0.08


def test_flow_just_below_1_is_the_step_from_1():
    """At 1 - 1e-6 the formula's std would be 131; the limit is the step from 1 itself."""
    x, v, noise = tensors(2, 3, 4)
    below, at = (
        sde.step(v, x, sigma, 0.965, kind="flow", noise_level=0.7, noise=noise)
        for sigma in (1 - 1e-6, 1.0)
    )
    torch.testing.assert_close(below.next_sample, at.next_sample, rtol=0, atol=1e-4)
    assert float(at.std.max()) < 1
    # A published schedule's own levels are as they were: the second of SD3's ten steps.
    second = sde.step(v, x, 0.964, 0.923, kind="flow", noise_level=0.7, noise=noise)
    assert float(second.std.flatten()[0]) == pytest.approx(
        0.7 * math.sqrt(0.964 / 0.036 * 0.041), rel=1e-6
    )
