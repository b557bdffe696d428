"""Formulas of the objective, compared with plain Python, closed forms or finite differences."""

import math

import pytest
import torch

from groupwise.objective import (
    clipped,
    is_clipped,
    kl,
    per_decision,
    sequence_log_ratio,
    token_log_ratio,
    weights,
)

MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1]], dtype=torch.bool)
NON_FINITE = [math.nan, math.inf, -math.inf]


@pytest.fixture
def log_probs():
    generator = torch.Generator().manual_seed(0)
    new = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    old = new + 0.5 * torch.randn(4, 4, generator=generator, dtype=torch.float64)
    return new, old


def finite_differences(function, values, step=1e-6):
    gradient = torch.zeros_like(values)
    for index in range(values.numel()):
        moved = values.flatten().clone()
        moved[index] += step
        high = function(moved.view_as(values))
        moved[index] -= 2 * step
        low = function(moved.view_as(values))
        gradient.view(-1)[index] = (high - low) / (2 * step)
    return gradient


def autograd(function, values):
    values = values.clone().requires_grad_()
    return torch.autograd.grad(function(values), values)[0]


# ---- ratios


def test_token_log_ratio_is_the_difference_of_each_decision(log_probs):
    new, old = log_probs
    log_ratio = token_log_ratio(new, old, MASK)
    for row in range(4):
        for position in range(4):
            expected = (
                float(new[row, position] - old[row, position]) if MASK[row, position] else 0.0
            )
            assert float(log_ratio[row, position]) == expected


def test_sequence_log_ratio_is_the_mean_difference_of_a_completion(log_probs):
    new, old = log_probs
    log_ratio = sequence_log_ratio(new, old, MASK)
    for row in range(4):
        differences = [float((new - old)[row, t]) for t in range(4) if MASK[row, t]]
        mean = math.fsum(differences) / len(differences) if differences else 0.0
        expected = [mean if MASK[row, t] else 0.0 for t in range(4)]
        assert log_ratio[row].tolist() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("ratio", [token_log_ratio, sequence_log_ratio])
@pytest.mark.parametrize("padding", NON_FINITE)
def test_values_at_padding_change_neither_loss_nor_gradient(ratio, padding, log_probs):
    new, old = log_probs

    def loss(values, old_values):
        log_ratio = ratio(values, old_values, MASK)
        return (
            clipped(log_ratio, torch.ones(4), low=0.2, high=0.2) * weights(MASK, normalize="token")
        ).sum()

    expected = autograd(lambda v: loss(v, old), new)
    for bad_new, bad_old in [(padding, 0.0), (0.0, padding), (padding, padding)]:
        values = new.masked_fill(~MASK, bad_new)
        old_values = old.masked_fill(~MASK, bad_old)
        assert math.isfinite(float(loss(values, old_values)))
        gradient = autograd(lambda v, o=old_values: loss(v, o), values)
        assert torch.equal(gradient, expected)


@pytest.mark.parametrize("ratio", [token_log_ratio, sequence_log_ratio])
def test_gradients_of_ratios_match_finite_differences(ratio, log_probs):
    new, old = log_probs

    def function(v):
        return (ratio(v, old, MASK).exp() * torch.arange(4.0)).sum()

    torch.testing.assert_close(
        autograd(function, new), finite_differences(function, new), rtol=1e-6, atol=1e-8
    )


# ---- clip


def explicit_clip(ratio, advantage, low, high):
    return -min(ratio * advantage, max(1 - low, min(1 + high, ratio)) * advantage)


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.1, 0.5)])
@pytest.mark.parametrize("advantage", [-2.0, -0.5, 0.0, 0.5, 3.0])
def test_clipped_matches_the_formula(advantage, low, high):
    ratios = [0.1, 0.5, 0.79, 0.85, 1.0, 1.15, 1.21, 1.29, 1.6, 3.0]
    log_ratio = torch.tensor([ratios], dtype=torch.float64).log()
    loss = clipped(log_ratio, torch.tensor([advantage], dtype=torch.float64), low=low, high=high)
    expected = [explicit_clip(ratio, advantage, low, high) for ratio in ratios]
    assert loss[0].tolist() == pytest.approx(expected)


def test_the_gradient_is_zero_exactly_where_is_clipped():
    """At ratios away from the bounds, where the loss has no derivative."""
    ratios = torch.tensor([0.3, 0.7, 0.9, 1.0, 1.1, 1.25, 2.0], dtype=torch.float64)
    log_ratio = torch.stack([ratios, ratios]).log()
    advantages = torch.tensor([1.5, -0.7], dtype=torch.float64)

    def function(values):
        return clipped(values, advantages, low=0.2, high=0.28).sum()

    gradient = autograd(function, log_ratio)
    torch.testing.assert_close(
        gradient, finite_differences(function, log_ratio), rtol=1e-6, atol=1e-8
    )
    cut = is_clipped(log_ratio, advantages, low=0.2, high=0.28)
    assert torch.equal(cut, gradient == 0)
    assert cut.sum() == 3


def test_gradient_at_ratio_one_is_minus_the_advantage():
    advantages = torch.tensor([1.5, -0.7], dtype=torch.float64)
    gradient = autograd(
        lambda v: clipped(v, advantages, low=0.2, high=0.2).sum(),
        torch.zeros(2, 3, dtype=torch.float64),
    )
    torch.testing.assert_close(gradient, -advantages.unsqueeze(1).expand(2, 3))


def test_advantages_may_differ_by_decision():
    log_ratio = torch.tensor([[0.1, -0.1, 1.0]], dtype=torch.float64)
    advantages = torch.tensor([[1.0, -1.0, 2.0]], dtype=torch.float64)
    loss = clipped(log_ratio, advantages, low=0.2, high=0.3)
    expected = [
        explicit_clip(math.exp(r), a, 0.2, 0.3)
        for r, a in zip([0.1, -0.1, 1.0], [1.0, -1.0, 2.0], strict=True)
    ]
    assert loss[0].tolist() == pytest.approx(expected)
    assert per_decision(advantages) is advantages
    assert per_decision(advantages[0]).shape == (3, 1)


# ---- KL


@pytest.mark.parametrize(
    ("estimator", "formula"),
    [
        ("k1", lambda d: d),
        ("k2", lambda d: d * d / 2),
        ("k3", lambda d: math.exp(-d) - 1 + d),
    ],
)
def test_kl_estimators_match_their_formulas(estimator, formula):
    new = torch.tensor([[-1.0, -2.0, -0.3, -4.0]], dtype=torch.float64)
    reference = torch.tensor([[-1.0, -1.5, -2.3, -3.9]], dtype=torch.float64)
    values = kl(new, reference, estimator=estimator)
    expected = [formula(float(d)) for d in (new - reference)[0]]
    assert values[0].tolist() == pytest.approx(expected, abs=1e-15)
    function = lambda v: kl(v, reference, estimator=estimator).sum()  # noqa: E731
    torch.testing.assert_close(
        autograd(function, new), finite_differences(function, new), rtol=1e-6, atol=1e-8
    )


def distributions():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    return logits[0], logits[1].log_softmax(0)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_is_unbiased(estimator):
    logits, reference = distributions()
    policy = logits.log_softmax(0)
    exact = (policy.exp() * (policy - reference)).sum()
    expectation = (policy.exp() * kl(policy, reference, estimator=estimator)).sum()
    assert float(expectation) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize(("estimator", "share"), [("k1", 0.0), ("k2", 1.0)])
def test_k1_has_no_expected_gradient_and_k2_that_of_the_kl(estimator, share):
    """As a loss, k2 has the gradient of the KL and k1 has none, as the docstring of `kl` states."""
    logits, reference = distributions()
    exact = autograd(lambda v: (v.softmax(0) * (v.log_softmax(0) - reference)).sum(), logits)
    gradient = autograd(
        lambda v: (
            v.softmax(0).detach() * kl(v.log_softmax(0), reference, estimator=estimator)
        ).sum(),
        logits,
    )
    torch.testing.assert_close(gradient, share * exact, rtol=1e-10, atol=1e-12)


def test_k3_is_never_negative_and_exact_near_zero():
    new = torch.linspace(-3, 3, 101).unsqueeze(0)
    assert bool((kl(new, torch.zeros_like(new)) >= 0).all())
    near_zero = kl(torch.tensor([1e-6], dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    assert float(near_zero) == pytest.approx(5e-13, rel=1e-3)


def test_unknown_estimator_raises():
    with pytest.raises(ValueError, match="k4"):
        kl(torch.zeros(1, 1), torch.zeros(1, 1), estimator="k4")


# ---- weights


def test_weights_match_their_definitions():
    lengths = [3, 1, 0, 3]
    sequence = weights(MASK, normalize="sequence")
    token = weights(MASK, normalize="token")
    constant = weights(MASK, normalize="constant", length=10)
    for row in range(4):
        for position in range(4):
            is_decision = bool(MASK[row, position])
            index = (row, position)
            assert float(sequence[index]) == pytest.approx(is_decision / (4 * max(1, lengths[row])))
            assert float(token[index]) == pytest.approx(is_decision / 7)
            assert float(constant[index]) == pytest.approx(is_decision / 40)


@pytest.mark.parametrize("normalize", ["sequence", "token", "constant"])
def test_it_does_not_matter_into_how_many_rollouts_an_episode_is_cut(normalize):
    whole = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    cut = torch.tensor([[True] * 2 + [False], [True] * 3, [True] * 3])
    expected = weights(whole, normalize=normalize, length=5)
    own = weights(cut, normalize=normalize, length=5, episodes=torch.tensor([7, 7, 2]))
    assert torch.equal(own[cut], expected[whole])


def test_sums_of_weights():
    # Three of four rollouts have decisions; the fourth has no weight, but counts in B.
    assert float(weights(MASK, normalize="sequence").sum()) == pytest.approx(3 / 4)
    assert float(weights(MASK, normalize="token").sum()) == pytest.approx(1.0)
    assert float(weights(MASK, normalize="constant", length=7).sum()) == pytest.approx(1 / 4)
    full = torch.ones(5, 3, dtype=torch.bool)
    for normalize in ("sequence", "token", "constant"):
        total = weights(full, normalize=normalize, length=3).sum()
        assert float(total) == pytest.approx(1.0)
    assert weights(MASK, normalize="sequence").dtype == torch.float32


@pytest.mark.parametrize("normalize", ["sequence", "token", "constant"])
def test_without_decisions_all_weights_are_zero(normalize):
    for shape in [(0, 0), (0, 3), (2, 0), (2, 3)]:
        zeros = weights(torch.zeros(shape, dtype=torch.bool), normalize=normalize, length=4)
        assert zeros.shape == shape
        assert not zeros.any()


def test_weights_refuse_bad_arguments():
    with pytest.raises(ValueError, match="length >= 1, received None"):
        weights(MASK, normalize="constant")
    with pytest.raises(ValueError, match="received 0"):
        weights(MASK, normalize="constant", length=0)
    with pytest.raises(ValueError, match="mean"):
        weights(MASK, normalize="mean")
