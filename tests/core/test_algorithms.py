"""Every algorithm's advantages and losses against plain loops in float64."""

import math
import statistics

import pytest
import torch
from pydantic import ValidationError

from groupwise import LogProbs, Rollouts, advantages, objective
from groupwise.algorithms.cispo import CISPO
from groupwise.algorithms.grpo import GRPO
from groupwise.algorithms.guard import Guard
from groupwise.algorithms.lead import LEAD
from groupwise.algorithms.luspo import LUSPO
from groupwise.algorithms.reinforce_pp import ReinforcePP
from groupwise.algorithms.reinforce_pp_baseline import ReinforcePPBaseline
from groupwise.algorithms.rloo import RLOO
from groupwise.algorithms.sapo import SAPO
from groupwise.algorithms.vespo import VESPO
from groupwise.errors import UserError
from groupwise.rewards import Scores

NAN = math.nan
MASK = torch.tensor(
    [[1, 1, 1, 0], [1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]
).bool()
GROUPS = torch.tensor([0, 1, 0, 1, 1, 0])
REWARDS = [1.0, 0.5, 0.0, 2.0, 0.0, NAN]
ROWS, PLACES = range(MASK.shape[0]), range(MASK.shape[1])


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
    """[B, T] of function(row, place), 0 outside the mask."""
    return torch.tensor(
        [[function(row, t) if MASK[row, t] else 0.0 for t in PLACES] for row in ROWS],
        dtype=torch.float64,
    )


# ---- advantages


def test_leave_one_out():
    found = advantages.leave_one_out(torch.tensor(REWARDS, dtype=torch.float64), GROUPS)
    for row in ROWS:
        others = [
            REWARDS[o]
            for o in ROWS
            if o != row and GROUPS[o] == GROUPS[row] and not math.isnan(REWARDS[o])
        ]
        expected = 0.0 if math.isnan(REWARDS[row]) else REWARDS[row] - statistics.mean(others)
        assert float(found[row]) == pytest.approx(expected, abs=1e-12)
    alone = torch.tensor([1.0, NAN, 2.0])
    assert advantages.leave_one_out(alone, torch.tensor([0, 0, 1])).tolist() == [0.0, 0.0, 0.0]


def test_whitened():
    values = tensors()[0]
    found = advantages.whitened(values, MASK, epsilon=1e-3)
    chosen = [float(values[row, t]) for row in ROWS for t in PLACES if MASK[row, t]]
    mean, std = statistics.mean(chosen), statistics.stdev(chosen)
    expected = per_decision(lambda row, t: (float(values[row, t]) - mean) / (std + 1e-3))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    # 0.1 three times has a mean that is not 0.1; what is all the same is 0, exactly.
    assert not advantages.whitened(torch.full((1, 3), 0.1), torch.ones(1, 3).bool()).any()
    assert not advantages.whitened(values, torch.zeros_like(MASK)).any()


def test_to_go():
    found = advantages.to_go(torch.tensor([[1.0, NAN, 2.0], [NAN, NAN, 4.0]]))
    assert found.tolist() == [[3.0, 2.0, 2.0], [4.0, 4.0, 4.0]]


STEPS = torch.where(MASK & (torch.arange(4) % 2 == 0), tensors(1)[0], NAN)


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("steps", [None, STEPS])
def test_reinforce_pp(beta, steps):
    old, reference = tensors(count=2)
    algorithm = ReinforcePP(ReinforcePP.Config(beta=beta))
    answers = {"old_log_probs": old, "reference_log_probs": reference} if beta else {}
    assert algorithm.sees == set(answers)
    found = algorithm.targets(scores(steps=steps), rollouts(), answers)["advantages"]

    def value(row, t):
        later = [place for place in PLACES if place >= t and MASK[row, place]]
        value = 0.0 if math.isnan(REWARDS[row]) else REWARDS[row]
        value -= beta * math.fsum(float(old[row, p] - reference[row, p]) for p in later)
        if steps is not None:
            value += math.fsum(float(steps[row, p]) for p in later if not steps[row, p].isnan())
        return value

    judged = [row for row in ROWS if steps is not None or not math.isnan(REWARDS[row])]
    chosen = [value(row, t) for row in judged for t in PLACES if MASK[row, t]]
    mean, std = statistics.mean(chosen), statistics.stdev(chosen)
    expected = per_decision(lambda row, t: (value(row, t) - mean) / std if row in judged else 0.0)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)
    assert found.shape == MASK.shape


def test_the_kl_of_reinforce_pp_is_in_the_reward_alone():
    old, new, reference = tensors()
    algorithm = ReinforcePP(ReinforcePP.Config(beta=0.3))
    answers = {"old_log_probs": old, "reference_log_probs": reference}
    batch = {**algorithm.targets(scores(), rollouts(), answers), **answers, "mask": MASK}
    plain = ReinforcePP().loss(LogProbs(log_probs=new), batch)
    assert torch.equal(algorithm.loss(LogProbs(log_probs=new), batch), plain)
    assert "kl" in algorithm.measure(LogProbs(log_probs=new), batch)


def test_reinforce_pp_with_a_baseline():
    found = ReinforcePPBaseline().targets(scores(), rollouts(), {})["advantages"]

    def centred(row):
        group = [
            REWARDS[o] for o in ROWS if GROUPS[o] == GROUPS[row] and not math.isnan(REWARDS[o])
        ]
        return REWARDS[row] - statistics.mean(group)

    judged = [row for row in ROWS if not math.isnan(REWARDS[row])]
    chosen = [centred(row) for row in judged for t in PLACES if MASK[row, t]]
    mean, std = statistics.mean(chosen), statistics.stdev(chosen)
    expected = per_decision(lambda row, _: (centred(row) - mean) / std if row in judged else 0.0)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)


LEAD_REWARDS = [1.0, 0.0, 1.0, 1.0, 1.0, 0.2]
FORMAT = [0.0, 1.0, NAN, 0.0, 1.0, 1.0]


def restated_lead(config):
    """The paper's formulas, with another reward that is added at half its weight."""
    lengths = MASK.sum(dim=1).tolist()
    result = []
    for group in (0, 1):
        members = [row for row in ROWS if GROUPS[row] == group]
        right = [row for row in members if LEAD_REWARDS[row] >= 1]
        mean = statistics.mean(lengths[row] for row in right)
        std = statistics.stdev([lengths[row] for row in right]) if len(right) > 1 else 0.0
        total = {}
        for row in members:
            z = (lengths[row] - mean) / (std + 1e-8)
            reward = math.exp(-config.alpha * z) if row in right else -config.penalty
            total[row] = reward + (0.0 if math.isnan(FORMAT[row]) else 0.5 * FORMAT[row])
        share = len(right) / len(members)
        spread = statistics.stdev(total.values()) + config.epsilon
        for row in members:
            advantage = (total[row] - statistics.mean(total.values())) / spread
            rate = share if advantage > 0 else 1 - share
            span = config.highest - config.lowest
            weight = config.lowest + span / (1 + math.exp(config.slope * (rate - config.middle)))
            result.append((row, advantage * weight))
    return [value for _, value in sorted(result)]


@pytest.mark.parametrize(
    "config", [{}, {"alpha": 0.5, "penalty": 0.0, "lowest": 1.0}, {"accuracy": "reward"}]
)
def test_lead(config):
    algorithm = LEAD(LEAD.Config(**config))
    found = algorithm.targets(scores(LEAD_REWARDS, format=FORMAT), rollouts(), {})["advantages"]
    assert found.tolist() == pytest.approx(restated_lead(algorithm.config), rel=1e-5)


def test_what_lead_is_for():
    """Of right answers the short one is better, and a rare right answer counts more."""
    lengths = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
    half = rollouts(lengths, torch.zeros(4, dtype=torch.int64))
    one, other = (
        LEAD().targets(scores(values), half, {})["advantages"]
        for values in ([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0])
    )
    assert one[0] > one[1] > 0 > one[2] == one[3]
    assert other[3] / other[0].abs() > 3 * 1.5
    all_wrong = LEAD().targets(scores([0.0] * 4), half, {})["advantages"]
    assert not all_wrong.any()


def test_lead_learns_from_right_answers_of_different_lengths():
    """Group 0 is right in 3, 1 and 3 decisions; in group 1 all are wrong, by different values."""
    values = scores([1.0, 0.0, 1.0, 0.5, 0.2, 1.0])
    algorithm = LEAD()
    assert algorithm.dead(values, rollouts()).tolist() == (GROUPS == 1).tolist()
    advantage = algorithm.targets(values, rollouts(), {})["advantages"]
    assert ((advantage == 0) == algorithm.dead(values, rollouts())).all()
    equal = rollouts(mask=torch.ones(6, 2, dtype=torch.bool))
    assert algorithm.dead(values, equal).all()


def test_reinforce_pp_learns_from_equal_rewards_that_are_not_the_batchs():
    values = scores([1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    algorithm = ReinforcePP(ReinforcePP.Config(beta=0.1))
    assert GRPO().dead(values, rollouts()).all()
    assert ReinforcePPBaseline().dead(values, rollouts()).all()
    assert not algorithm.dead(values, rollouts()).any()
    assert algorithm.dead(scores([0.3] * 6), rollouts()).all()
    unscored = scores([1.0, NAN, 0.0, NAN, NAN, 1.0])
    assert algorithm.dead(unscored, rollouts()).tolist() == (GROUPS == 1).tolist()


def test_returns_differ_where_equal_steps_are_of_different_number():
    """Group 0: one step of 1, or two; group 1: all have a step of 1 and then one of 0."""
    steps = torch.full(MASK.shape, NAN, dtype=torch.float64)
    for row in ROWS:
        steps[row, :2] = torch.tensor([1.0, 0.0] if GROUPS[row] else [1.0, 1.0])
    steps[2, 1] = NAN
    values = scores([NAN] * 6, steps=steps)
    by = {name: GRPO(GRPO.Config(steps=name)) for name in ("rewards", "returns")}
    dead = {name: algorithm.dead(values, rollouts()) for name, algorithm in by.items()}
    assert dead["rewards"].tolist() == (GROUPS == 0).tolist()
    assert dead["returns"].tolist() == (GROUPS == 1).tolist()
    for name, algorithm in by.items():
        learns = algorithm.active(algorithm.targets(values, rollouts(), {}))
        assert not learns[dead[name]].any()
        assert learns[~dead[name]].any()


def test_the_accuracy_of_lead_must_be_a_reward():
    algorithm = LEAD(LEAD.Config(accuracy="acuracy"))
    with pytest.raises(UserError, match="of the rewards reward, accuracy, received 'acuracy', did"):
        algorithm.targets(scores(accuracy=REWARDS), rollouts(), {})


# ---- objectives


def restated(form, ratio, advantage, log_prob, product):
    """What one decision costs; `product` is the ratio of its completion."""
    if form == "capped":
        ratio = min(ratio, 1.4)
        return -min(ratio * advantage, max(0.8, min(1.2, ratio)) * advantage)
    if form == "dual":  # verl's way to write it
        plain = min(ratio * advantage, max(0.8, min(1.2, ratio)) * advantage)
        return -max(plain, 1.4 * advantage) if advantage < 0 else -plain
    if form == "cispo":
        return -max(0.7, min(1.5, ratio)) * advantage * log_prob
    if form == "sapo":
        tau = 1.0 if advantage > 0 else 1.05
        return -advantage * 4 / tau / (1 + math.exp(-tau * (ratio - 1)))
    k, decay = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
    phi = product**k * math.exp(decay * (1 - product))
    return -phi * advantage * log_prob


LOSSES = {
    "capped": GRPO(GRPO.Config(ratio_cap=1.4)),
    "dual": GRPO(GRPO.Config(ratio_cap=1.4)),
    "cispo": CISPO(CISPO.Config(clip_low=0.3, clip_high=0.5)),
    "sapo": SAPO(),
    "vespo": VESPO(),
}
SCORE_FUNCTIONS = ("cispo", "vespo")
"""Their weight has no gradient, so finite differences hold it still."""


@pytest.mark.parametrize("form", LOSSES)
def test_losses_and_gradients(form):
    old, new = tensors(count=2)
    given = tensors(2)[0]
    algorithm = LOSSES[form]

    def cost(row, t, log_prob, weigh):
        """Of a decision with this log-prob; weigh: by the ratios that another has."""
        ratio = math.exp((new[row, t] if weigh else log_prob) - old[row, t])
        product = math.exp(
            math.fsum(float(new[row, p] - old[row, p]) for p in PLACES if MASK[row, p])
        )
        return restated(form, ratio, float(given[row, t] + 3), log_prob, product)

    values = new.clone().requires_grad_()
    batch = {"old_log_probs": old, "mask": MASK, "advantages": given + 3}
    found = algorithm.surrogate(LogProbs(log_probs=values), batch)
    weigh = form in SCORE_FUNCTIONS
    expected = per_decision(lambda row, t: cost(row, t, float(new[row, t]), weigh))
    torch.testing.assert_close(
        torch.where(MASK, found.detach(), 0.0), expected, rtol=1e-10, atol=1e-12
    )
    torch.where(MASK, found, 0.0).sum().backward()
    step = 1e-6
    slopes = per_decision(
        lambda row, t: (
            (
                cost(row, t, float(new[row, t]) + step, weigh)
                - cost(row, t, float(new[row, t]) - step, weigh)
            )
            / (2 * step)
        )
    )
    torch.testing.assert_close(values.grad, slopes, rtol=1e-5, atol=1e-7)


def test_the_capped_and_the_dual_clip_cut_what_is_told():
    log_ratio = torch.tensor([[0.5, 1.0, 1.3, 1.5, 5.0]] * 2, dtype=torch.float64).log()
    log_ratio.requires_grad_()
    rewards = torch.tensor([1.0, -1.0], dtype=torch.float64)
    limits = {"low": 0.2, "high": 0.2, "cap": 1.4}
    objective.clipped(log_ratio, rewards, **limits).sum().backward()
    cut = objective.is_clipped(log_ratio.detach(), rewards, **limits)
    assert torch.equal(cut, log_ratio.grad == 0)
    assert cut.tolist() == [[False, False, True, True, True], [True, False, False, True, True]]


def test_what_is_measured_of_a_soft_gate_and_weight():
    old, new = tensors(count=2)
    batch = {"old_log_probs": old, "mask": MASK, "advantages": tensors(2)[0]}
    values = new.clone().requires_grad_()
    SAPO().surrogate(LogProbs(log_probs=values), batch).sum().backward()
    gate = SAPO().damping(LogProbs(log_probs=new), batch)["gate"]
    plain = -batch["advantages"] * (new - old).exp()
    torch.testing.assert_close(values.grad, torch.where(MASK, gate * plain, 0.0))
    first = {**batch, "old_log_probs": new}
    for algorithm, name in ((SAPO(), "gate"), (VESPO(), "phi")):
        assert (algorithm.measure(LogProbs(log_probs=new), first)[name] == 1).all()


def test_phi_is_0_far_away_on_both_sides_and_never_nan():
    log_weight = torch.tensor([[-1e4, -30.0, 30.0, 1e4]])
    for sign in (1.0, -1.0):
        phi = objective.vespo_weights(
            log_weight, torch.tensor([sign]), positive=(2.0, 3.0), negative=(3.0, 2.0)
        )
        assert phi.tolist() == [[0.0, pytest.approx(0.0, abs=1e-20), 0.0, 0.0]]


def test_what_another_sampler_drew_is_inside_the_weight_of_vespo():
    old, new, drawn = tensors()
    batch = {"old_log_probs": old, "mask": MASK, "advantages": torch.ones(6, dtype=torch.float64)}
    current = LogProbs(log_probs=new)
    corrected = VESPO().surrogate(current, {**batch, "sampler_log_probs": drawn})
    assert torch.equal(corrected, VESPO().surrogate(current, {**batch, "old_log_probs": drawn}))
    ignoring = VESPO(VESPO.Config(importance="none"))
    assert torch.equal(
        ignoring.surrogate(current, {**batch, "sampler_log_probs": drawn}),
        VESPO().surrogate(current, batch),
    )
    assert VESPO().importance({**batch, "sampler_log_probs": drawn}) is None


def test_luspo_is_gspo_times_the_length():
    weights = LUSPO().targets(scores(), rollouts(), {})["weights"]
    torch.testing.assert_close(weights, MASK.float() / len(MASK))


# ---- Gaussians


def test_guard_needs_no_flow():
    """One number a decision, as of a controller: closed form, value and gradient."""
    old_mean, mean, drawn = tensors()
    std = tensors(3)[0].abs() + 0.3
    mean = mean.clone().requires_grad_()

    def log_prob(centre):
        return torch.distributions.Normal(centre, std).log_prob(drawn)

    given = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    batch = {"old_log_probs": log_prob(old_mean), "old_mean": old_mean, "mask": MASK}
    batch = {**batch, "advantages": given, "weights": MASK.double() / 6}
    current = LogProbs(log_probs=log_prob(mean), extra={"mean": mean, "std": std})
    ratio = (
        ((log_prob(mean) - log_prob(old_mean)) + (mean - old_mean) ** 2 / (2 * std**2)) * std
    ).exp()
    a = given.unsqueeze(1)
    expected = torch.where(MASK, -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a) / 6, 0.0)
    found = Guard().loss(current, batch)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)
    (one,) = torch.autograd.grad(found.sum(), mean, retain_graph=True)
    (other,) = torch.autograd.grad(expected.sum(), mean)
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-14)
    assert Guard().answers == {"log_probs", "mean", "std"}


@pytest.mark.parametrize("wide", [(), (5, 2)])
def test_the_exact_kl_is_that_of_the_normals(wide):
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn((2, 3, *wide), generator=generator).double() for _ in range(2))
    std = torch.rand((2, 3), generator=generator).double() + 0.1
    broad = std.view(2, 3, *[1] * len(wide))
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(one, broad), torch.distributions.Normal(other, broad)
    )
    exact = exact.flatten(2).mean(dim=2) if wide else exact
    torch.testing.assert_close(objective.gaussian_kl(one, other, std), exact)
    algorithm = GRPO(GRPO.Config(beta=0.1, kl="exact"))
    assert (algorithm.reference, algorithm.needs) == ({"mean"}, {"log_probs", "mean", "std"})
    current = LogProbs(log_probs=std, extra={"mean": one, "std": std})
    torch.testing.assert_close(algorithm.kl(current, {"reference_mean": other}), exact)


def test_advantages_are_cut_on_both_sides():
    found = RLOO(RLOO.Config(advantage_clip=0.5, length=4)).targets(scores(), rollouts(), {})
    assert found["advantages"].tolist() == [0.5, -0.5, -0.5, 0.5, -0.5, 0.0]


# ---- what is no configuration


@pytest.mark.parametrize(
    ("kind", "config", "why"),
    [
        (GRPO, {"ratio_cap": 1.2}, "ratio_cap must be more than 1 . clip_high = 1.2, found 1.2"),
        (GRPO, {"ratio_cap": 1.25, "clip_high": 0.28}, "= 1.28, found 1.25"),
        (GRPO, {"kl": "published"}, "'exact'"),
        (SAPO, {"clip_low": 0.2}, "Extra inputs are not permitted"),
        (CISPO, {"ratio_cap": 5.0}, "Extra inputs are not permitted"),
        (VESPO, {"importance_cap": 2.0}, "Extra inputs are not permitted"),
        (VESPO, {"importance": "token"}, "'sequence' or 'none'"),
        (ReinforcePP, {"scale": "group"}, "Extra inputs are not permitted"),
        (ReinforcePP, {"kl": "k3"}, "Extra inputs are not permitted"),
        (LEAD, {"penalty": -1.0}, "greater than or equal to 0"),
    ],
)
def test_what_is_no_configuration(kind, config, why):
    with pytest.raises(ValidationError, match=why):
        kind.Config(**config)
