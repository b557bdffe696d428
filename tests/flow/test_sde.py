"""Each step's Gaussian against its formula in float64, and the marginals that it promises."""

import math
from itertools import pairwise

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from groupwise_flow import sde

STEPS = [(1.0, 0.9), (1.0, 0.4), (0.9, 0.85), (0.6, 0.3), (0.31, 0.02), (0.05, 0.0)]
LEVELS = {"flow": 0.7, "cps": 0.8, "dance": 0.3}
KINDS = [*LEVELS, "ode"]


def restated(kind, x, v, s, after, *, level):
    """Mean and std for numbers, written from the formulas of the papers."""
    fall = s - after
    data, noise = x - s * v, x + (1 - s) * v
    if kind == "ode":
        return x - v * fall, 0.0
    if kind == "cps":
        std = after * math.sin(level * math.pi / 2)
        return (1 - after) * data + math.sqrt(after**2 - std**2) * noise, std
    # An SDE's drift is v - g^2 / 2 times the score of the Gaussian around (1 - s) data.
    g = level if kind == "dance" else level * math.sqrt(s / (1 - (after if s == 1 else s)))
    if kind == "dance":
        score = -(x - (1 - s) * data) / s**2
        return x - (v - g**2 * score / 2) * fall, g * math.sqrt(fall)
    pulled = x * (1 - g**2 * fall / (2 * s)) - v * (1 + g**2 * (1 - s) / (2 * s)) * fall
    return pulled, g * math.sqrt(fall)


def tensors(*shape, dtype=torch.float64, count=3):
    generator = torch.Generator().manual_seed(4)
    drawn = torch.randn((count, *shape), generator=generator, dtype=torch.float64)
    return drawn.to(dtype).unbind()


def level(kind):
    return LEVELS.get(kind, 0.7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sigma", "after"), STEPS)
def test_mean_and_std_are_those_of_the_formula(kind, sigma, after):
    x, v, noise = tensors(2, 3, 4)
    step = sde.step(v, x, sigma, after, kind=kind, noise_level=level(kind), noise=noise)
    std = restated(kind, 0.0, 0.0, sigma, after, level=level(kind))[1]
    for place in [(0, 0, 0), (1, 2, 3), (0, 1, 2)]:
        numbers = float(x[place]), float(v[place])
        mean, _ = restated(kind, *numbers, sigma, after, level=level(kind))
        assert float(step.mean[place]) == pytest.approx(mean, rel=1e-12, abs=1e-14)
    assert float(step.std.flatten()[0]) == pytest.approx(std, rel=1e-12)
    assert (std > 0) == (kind != "ode" and not (kind == "cps" and after == 0))
    torch.testing.assert_close(step.next_sample, step.mean + std * noise, rtol=1e-12, atol=1e-14)
    assert step.mean.dtype == torch.float64


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_may_have_sigmas_of_its_own(kind):
    sigmas = torch.tensor([pair[0] for pair in STEPS], dtype=torch.float64)
    afters = torch.tensor([pair[1] for pair in STEPS], dtype=torch.float64)
    x, v, noise = tensors(len(STEPS), 5)
    together = sde.step(v, x, sigmas, afters, kind=kind, noise_level=level(kind), noise=noise)
    assert together.log_prob.shape == (len(STEPS),)
    for row, (sigma, after) in enumerate(STEPS):
        here = slice(row, row + 1)
        alone = sde.step(
            v[here], x[here], sigma, after, kind=kind, noise_level=level(kind), noise=noise[here]
        )
        for name in ("mean", "next_sample", "log_prob"):
            torch.testing.assert_close(getattr(together, name)[here], getattr(alone, name))
        assert float(together.std.flatten()[row]) == pytest.approx(float(alone.std.flatten()[0]))


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize(("sigma", "after"), STEPS[:-1])
def test_log_prob_is_the_normals_averaged_over_dimensions(kind, sigma, after):
    x, v, noise, elsewhere = tensors(3, 2, 4, count=4)
    drawn = sde.step(v, x, sigma, after, kind=kind, noise_level=level(kind), noise=noise)
    given = sde.step(v, x, sigma, after, kind=kind, noise_level=level(kind), next_sample=elsewhere)
    for step, value in [(drawn, drawn.next_sample), (given, elsewhere)]:
        assert torch.equal(step.next_sample, value)
        expected = Normal(step.mean, step.std).log_prob(value).flatten(1).mean(dim=1)
        torch.testing.assert_close(step.log_prob, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(drawn.mean, given.mean)


def test_what_is_certain_has_log_prob_0():
    x, v, elsewhere = tensors(2, 5)
    for given in (None, elsewhere):
        step = sde.step(v, x, 0.5, 0.2, kind="ode", next_sample=given)
        assert step.log_prob.tolist() == [0.0, 0.0]
    last = sde.step(v, x, 0.5, 0.0, kind="cps", noise_level=0.8)
    assert last.log_prob.tolist() == [0.0, 0.0]
    assert torch.equal(last.next_sample, last.mean)
    # A row that is certain beside one that is not.
    mixed = sde.step(v, x, 0.5, torch.tensor([0.0, 0.2]), kind="cps", noise_level=0.8, noise=v)
    assert mixed.log_prob[0] == 0
    assert mixed.log_prob[1] != 0


@pytest.mark.parametrize("kind", LEVELS)
def test_no_noise_level_makes_the_deterministic_step(kind):
    x, v, noise = tensors(2, 5)
    step = sde.step(v, x, 0.6, 0.4, kind=kind, noise_level=0.0, noise=noise)
    expected = sde.step(v, x, 0.6, 0.4, kind="ode").next_sample
    torch.testing.assert_close(step.next_sample, expected)


def test_noise_is_drawn_when_none_is_given():
    x, v, _ = tensors(2, 5)
    torch.manual_seed(3)
    drawn = sde.step(v, x, 0.6, 0.4, kind="flow")
    torch.manual_seed(3)
    noise = torch.randn_like(x)
    torch.testing.assert_close(drawn.next_sample, drawn.mean + drawn.std * noise)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_computed_in_float32(kind):
    x, v, noise = tensors(2, 7, dtype=torch.bfloat16)
    low = sde.step(v, x, 0.6, 0.4, kind=kind, noise_level=level(kind), noise=noise)
    high = sde.step(
        v.float(), x.float(), 0.6, 0.4, kind=kind, noise_level=level(kind), noise=noise.float()
    )
    for name in ("next_sample", "log_prob", "mean", "std"):
        assert getattr(low, name).dtype == torch.float32
        assert torch.equal(getattr(low, name), getattr(high, name))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"velocity": torch.zeros(2, 4)}, r"velocity \[2, 4\] and sample \[2, 5\]"),
        ({"noise": torch.zeros(1, 5)}, r"noise \[1, 5\] and sample \[2, 5\]"),
        ({"next_sample": torch.zeros(5)}, r"next_sample \[5\] and sample \[2, 5\]"),
        ({"sigma": torch.tensor([0.6, 0.6, 0.6])}, "3 sigmas for 2 samples"),
        ({"kind": "euler"}, "kind must be .* received 'euler'"),
        ({"noise_level": -0.1}, "noise_level must not be negative, received -0.1"),
        ({"kind": "cps", "noise_level": 1.1}, "noise_level must be at most 1 for cps"),
        ({"sigma_next": 0.6}, "sigma_next must be below sigma"),
        ({"sigma_next": torch.tensor([0.5, 0.7])}, "sigma_next must be below sigma"),
    ],
)
def test_what_makes_no_step_is_refused(change, told):
    usual = {"velocity": torch.zeros(2, 5), "sample": torch.zeros(2, 5)}
    with pytest.raises(ValueError, match=told):
        sde.step(**{**usual, "sigma": 0.6, "sigma_next": 0.4, **change})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sigma", "after"), STEPS)
def test_known_data_and_noise_keep_their_shares(kind, sigma, after):
    """Steps are linear in data and noise, so unit vectors of both tell all of the marginal."""
    data, noise = torch.eye(2, dtype=torch.float64)
    x = (1 - sigma) * data + sigma * noise
    step = sde.step(
        (noise - data).unsqueeze(0),
        x.unsqueeze(0),
        sigma,
        after,
        kind=kind,
        noise_level=level(kind),
    )
    of_data, of_noise = step.mean[0].tolist()
    variance = of_noise**2 + float(step.std.flatten()[0]) ** 2
    assert of_data == pytest.approx(1 - after, rel=1e-12)
    fall, excess = sigma - after, 0.0
    if kind in ("flow", "dance"):
        rest = 1 - (after if sigma == 1 else sigma)
        squared = level(kind) ** 2 * (sigma / rest if kind == "flow" else 1)
        excess = squared * fall**2 / sigma + squared**2 * fall**2 / (4 * sigma**2)
        assert excess > 0
    assert variance == pytest.approx(after**2 + excess, rel=1e-12, abs=1e-15)


MEANS = torch.tensor([[2.0, 0.0], [-1.0, 1.0], [0.0, -2.0]], dtype=torch.float64)
SHARES = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
SPREAD = 0.4


def marginal_velocity(x, s):
    """E[noise - data | x] where the data is a mixture of Gaussians of std SPREAD."""
    variance = (1 - s) ** 2 * SPREAD**2 + s**2
    away = x.unsqueeze(1) - (1 - s) * MEANS  # [n, components, 2]
    whose = (SHARES.log() - away.square().sum(2) / (2 * variance)).softmax(dim=1).unsqueeze(2)
    noise = s / variance * away
    data = MEANS + (1 - s) * SPREAD**2 / variance * away
    return (whose * (noise - data)).sum(1)


@pytest.mark.parametrize(("kind", "strong"), [("flow", 0.7), ("dance", 1.0), ("ode", 0.0)])
def test_many_short_steps_keep_the_marginals(kind, strong):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 2, generator=generator, dtype=torch.float64)
    sigmas = torch.linspace(1, 0, 101, dtype=torch.float64).tolist()
    middle = None
    for sigma, after in pairwise(sigmas):
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        last = after == 0
        v = marginal_velocity(x, sigma)
        x = sde.step(
            v, x, sigma, after, kind="ode" if last else kind, noise_level=strong, noise=noise
        ).next_sample
        if math.isclose(after, 0.5):
            middle = x
    mean = (SHARES.unsqueeze(1) * MEANS).sum(0)
    around = MEANS - mean
    between = (SHARES.view(-1, 1, 1) * around.unsqueeze(2) * around.unsqueeze(1)).sum(0)
    whole = between + SPREAD**2 * torch.eye(2, dtype=torch.float64)
    half = 0.25 * whole + 0.25 * torch.eye(2, dtype=torch.float64)
    for found, expected in [(x, whole), (middle, half)]:
        assert (found.T.cov() - expected).abs().max() < 0.05 * expected.diagonal().max()
    assert (x.mean(0) - mean).abs().max() < 0.08


def test_divergence_is_that_of_the_normals():
    mean, other, _ = tensors(3, 2, 4)
    std = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64).view(3, 1, 1)
    exact = kl_divergence(Normal(mean, std), Normal(other, std)).flatten(1).mean(dim=1)
    torch.testing.assert_close(sde.divergence(mean, other, std), exact, rtol=1e-12, atol=0)
    assert sde.divergence(mean, mean, std).tolist() == [0.0] * 3
