"""DPPO and GMPO, compared with plain Python and closed-form or finite-difference gradients."""

import math

import pytest
import torch
from pydantic import ValidationError

from groupwise import LogProbs
from groupwise_algorithms.dppo import DPPO
from groupwise_algorithms.gmpo import GMPO

MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]]).bool()
ADVANTAGES = torch.tensor([1.5, -1.0, 2.0, -0.5, 0.7], dtype=torch.float64)
WEIGHTS = MASK / (len(MASK) * MASK.sum(dim=1, keepdim=True).clamp(min=1)).double()
PLACES = [(row, t) for row in range(len(MASK)) for t in range(4) if MASK[row, t]]
# Of each decision: the probability when it was drawn, before the first update, and now.
DRAWN = [[0.5, 0.9, 0.001, 1], [0.3, 1, 0.4, 1], [1, 1, 1, 1], [0.9, 0.6, 0.2, 0.999]]
OLD = [[0.6, 0.8, 0.01, 1], [0.2, 1, 0.5, 1], [1, 1, 1, 1], [0.8, 0.7, 0.1, 0.99]]
NEW = [[0.7, 0.97, 0.05, 1], [0.1, 1, 0.6, 1], [1, 1, 1, 1], [0.7, 0.5, 0.15, 0.9]]
DRAWN, OLD, NEW = (
    torch.tensor([*rows, last], dtype=torch.float64).log().masked_fill(~MASK, math.nan)
    for rows, last in (
        (DRAWN, [0.6, 0.3, 1, 1]),
        (OLD, [0.5, 0.4, 1, 1]),
        (NEW, [0.4, 0.44, 1, 1]),
    )
)
BATCH = {"mask": MASK, "advantages": ADVANTAGES, "weights": WEIGHTS, "old_log_probs": OLD}


def loss_and_gradient(algorithm, batch=BATCH):
    values = NEW.clone().requires_grad_()
    loss = algorithm.loss(LogProbs(log_probs=values), batch)
    loss.sum().backward()
    return float(loss.detach().sum()), values.grad


def tv(p, q):
    return abs(p - q)


def kl(p, q):
    return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))


@pytest.mark.parametrize(("divergence", "limit", "masked"), [(tv, 0.15, 3), (kl, 0.05, 5)])
@pytest.mark.parametrize("drawn", ["sampler_log_probs", "old_log_probs"])
def test_dppo_is_its_formula(divergence, limit, masked, drawn):
    """The weight of a log-prob has no gradient, so the gradient is the weight."""
    algorithm = DPPO(DPPO.Config(divergence=divergence.__name__, ratio_cap=20.0))
    batch = dict(BATCH) if drawn == "old_log_probs" else {**BATCH, "sampler_log_probs": DRAWN}
    value, gradient = loss_and_gradient(algorithm, batch)
    expected, slopes, beyond = 0.0, torch.zeros(MASK.shape, dtype=torch.float64), 0
    for row, t in PLACES:
        p, q = math.exp(NEW[row, t]), math.exp(batch[drawn][row, t])
        advantage = float(ADVANTAGES[row])
        if divergence(p, q) > limit and (p > q) == (advantage > 0):
            beyond += 1
            continue
        slopes[row, t] = -min(p / q, 20.0) * advantage * WEIGHTS[row, t]
        expected += float(slopes[row, t]) * math.log(p)
    assert value == pytest.approx(expected, rel=1e-10)
    torch.testing.assert_close(gradient, slopes, rtol=1e-10, atol=0)
    measured = algorithm.measure(LogProbs(log_probs=NEW), batch)["clip_fraction"]
    assert int(measured[MASK].sum()) == beyond
    if drawn == "sampler_log_probs":
        assert beyond == masked
        assert float((NEW - DRAWN)[MASK].max()) > math.log(20)


def test_dppo_limits_probabilities_where_grpo_limits_ratios():
    """A rare token that doubles keeps its gradient; a sure one that loses a fifth does not."""
    mask = torch.ones(2, 1, dtype=torch.bool)
    old, new = torch.tensor([[0.001], [0.99]]).log(), torch.tensor([[0.002], [0.8]]).log()
    batch = {"mask": mask, "advantages": torch.tensor([1.0, -1.0]), "old_log_probs": old}
    cut = DPPO().clip_metrics(LogProbs(log_probs=new), batch)["clip_fraction"]
    assert cut.tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_dppo_is_finite_for_certain_decisions(divergence):
    """In float32 the log-prob of a decision is often exactly 0."""
    new = torch.tensor([[0.0, -1e-9, -2.0, -80.0]], requires_grad=True)
    batch = {
        "mask": torch.ones(1, 4).bool(),
        "old_log_probs": torch.tensor([[0.0, -2.0, 0.0, 0.0]]),
    }
    batch |= {"advantages": torch.ones(1), "weights": torch.ones(1, 4)}
    algorithm = DPPO(DPPO.Config(divergence=divergence))
    algorithm.loss(LogProbs(log_probs=new), batch).sum().backward()
    assert new.grad.isfinite().all()
    cut = algorithm.clip_metrics(LogProbs(log_probs=new), batch)["clip_fraction"]
    assert cut.tolist() == [[0.0, 1.0, 0.0, 0.0]]  # the others go back, or nowhere


def test_dppo_compares_with_what_drew_the_decisions_unless_importance_is_none():
    batch = {**BATCH, "sampler_log_probs": DRAWN}
    uncorrected = DPPO(DPPO.Config(importance="none"))
    assert not uncorrected.corrects
    assert loss_and_gradient(uncorrected, batch)[0] == loss_and_gradient(DPPO())[0]
    assert loss_and_gradient(DPPO(), batch)[0] != loss_and_gradient(DPPO())[0]


def expected_gmpo(log_probs, low, high):
    """-A times the geometric mean of clipped ratios, averaged over completions."""
    total = 0.0
    for row, advantage in enumerate(ADVANTAGES.tolist()):
        ratios = [math.exp(log_probs[row, t] - OLD[row, t]) for r, t in PLACES if r == row]
        if advantage > 0:
            ratios = [min(ratio, math.exp(high)) for ratio in ratios]
        else:
            ratios = [max(ratio, math.exp(-low)) for ratio in ratios]
        if ratios:
            total -= advantage * math.prod(ratios) ** (1 / len(ratios))
    return total / len(ADVANTAGES)


@pytest.mark.parametrize(("config", "cut"), [({}, 2), ({"clip_low": 0.1, "clip_high": 0.18}, 5)])
def test_gmpo_is_its_formula(config, cut):
    algorithm = GMPO(GMPO.Config(**config))
    low, high = config.get("clip_low", 0.4), config.get("clip_high", 0.4)
    value, gradient = loss_and_gradient(algorithm)
    assert value == pytest.approx(expected_gmpo(NEW, low, high), rel=1e-10)
    step, slopes = 1e-6, torch.zeros_like(gradient)
    for row, t in PLACES:
        change = torch.zeros_like(NEW)
        change[row, t] = step
        above, below = (expected_gmpo(NEW + sign * change, low, high) for sign in (1, -1))
        slopes[row, t] = (above - below) / (2 * step)
    torch.testing.assert_close(gradient, slopes, rtol=1e-6, atol=1e-9)
    clipped = algorithm.measure(LogProbs(log_probs=NEW), BATCH)["clip_fraction"].bool() & MASK
    assert int(clipped.sum()) == cut
    assert (gradient[clipped] == 0).all()
    assert (gradient[MASK & ~clipped] != 0).all()


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        (DPPO, {"importance": "sequence"}, "'token' or 'none'"),
        (DPPO, {"importance_cap": 2.0}, "Extra inputs are not permitted"),
        (DPPO, {"clip_high": 0.2}, "Extra inputs are not permitted"),
        (DPPO, {"divergence": "top_k"}, "'tv' or 'kl'"),
        (GMPO, {"ratio_cap": 5.0}, "Extra inputs are not permitted"),
    ],
)
def test_options_of_other_algorithms_are_refused(kind, config, message):
    with pytest.raises(ValidationError, match=message):
        kind.Config(**config)
