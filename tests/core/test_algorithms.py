"""Advantages and losses of each algorithm, compared with loops in plain Python."""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from groupwise import LogProbs, Rollouts, advantages, objective
from groupwise.algorithms.cispo import CISPO
from groupwise.algorithms.dapo import DAPO
from groupwise.algorithms.dr_grpo import DrGRPO
from groupwise.algorithms.gdpo import GDPO
from groupwise.algorithms.grpo import GRPO
from groupwise.algorithms.guard import Guard
from groupwise.algorithms.lead import LEAD
from groupwise.algorithms.luspo import LUSPO
from groupwise.algorithms.reinforce_pp import ReinforcePP
from groupwise.algorithms.reinforce_pp_baseline import ReinforcePPBaseline
from groupwise.algorithms.rloo import RLOO
from groupwise.algorithms.sapo import SAPO
from groupwise.algorithms.vespo import VESPO
from groupwise.kit.errors import UserError
from groupwise.rewards import Scores

NAN = math.nan
MASK = torch.tensor(
    [[1, 1, 1, 0], [1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]
).bool()
GROUPS = torch.tensor([0, 1, 0, 1, 1, 0])
REWARDS = [1.0, 0.5, 0.0, 2.0, 0.0, NAN]
ROWS, POSITIONS = range(MASK.shape[0]), range(MASK.shape[1])


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


# ---- advantages


def test_leave_one_out_subtracts_the_mean_of_the_others():
    values = advantages.leave_one_out(torch.tensor(REWARDS, dtype=torch.float64), GROUPS)
    for row in ROWS:
        others = [
            REWARDS[o]
            for o in ROWS
            if o != row and GROUPS[o] == GROUPS[row] and not math.isnan(REWARDS[o])
        ]
        expected = 0.0 if math.isnan(REWARDS[row]) else REWARDS[row] - statistics.mean(others)
        assert float(values[row]) == pytest.approx(expected, abs=1e-12)
    single = torch.tensor([1.0, NAN, 2.0])
    assert advantages.leave_one_out(single, torch.tensor([0, 0, 1])).tolist() == [0.0, 0.0, 0.0]


def test_whitening_subtracts_the_mean_and_divides_by_the_std():
    values = tensors()[0]
    whitened = advantages.whitened(values, MASK, epsilon=1e-3)
    chosen = [float(values[row, t]) for row in ROWS for t in POSITIONS if MASK[row, t]]
    mean, std = statistics.mean(chosen), statistics.stdev(chosen)
    expected = per_decision(lambda row, t: (float(values[row, t]) - mean) / (std + 1e-3))
    torch.testing.assert_close(whitened, expected, rtol=1e-12, atol=1e-12)
    # The computed mean of three times 0.1 is not 0.1; equal values must still give exactly 0.
    assert not advantages.whitened(torch.full((1, 3), 0.1), torch.ones(1, 3).bool()).any()
    assert not advantages.whitened(values, torch.zeros_like(MASK)).any()


def test_returns_to_go():
    returns = advantages.to_go(torch.tensor([[1.0, NAN, 2.0], [NAN, NAN, 4.0]]))
    assert returns.tolist() == [[3.0, 2.0, 2.0], [4.0, 4.0, 4.0]]


STEPS = torch.where(MASK & (torch.arange(4) % 2 == 0), tensors(1)[0], NAN)


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("steps", [None, STEPS])
def test_advantages_of_reinforce_pp_match_the_formula(beta, steps):
    old, reference = tensors(count=2)
    algorithm = ReinforcePP(ReinforcePP.Config(beta=beta))
    inputs = {"old_log_probs": old, "reference_log_probs": reference} if beta else {}
    assert algorithm.target_inputs == set(inputs)
    result = algorithm.targets(scores(steps=steps), rollouts(), inputs)["advantages"]

    def value(row, t):
        later = [position for position in POSITIONS if position >= t and MASK[row, position]]
        value = 0.0 if math.isnan(REWARDS[row]) else REWARDS[row]
        value -= beta * math.fsum(float(old[row, p] - reference[row, p]) for p in later)
        if steps is not None:
            value += math.fsum(float(steps[row, p]) for p in later if not steps[row, p].isnan())
        return value

    scored = [row for row in ROWS if steps is not None or not math.isnan(REWARDS[row])]
    chosen = [value(row, t) for row in scored for t in POSITIONS if MASK[row, t]]
    mean, std = statistics.mean(chosen), statistics.stdev(chosen)
    expected = per_decision(lambda row, t: (value(row, t) - mean) / std if row in scored else 0.0)
    torch.testing.assert_close(result, expected.float(), rtol=1e-5, atol=1e-6)
    assert result.shape == MASK.shape


def test_the_kl_of_reinforce_pp_is_in_the_reward_and_not_in_the_loss():
    old, new, reference = tensors()
    algorithm = ReinforcePP(ReinforcePP.Config(beta=0.3))
    inputs = {"old_log_probs": old, "reference_log_probs": reference}
    batch = {**algorithm.targets(scores(), rollouts(), inputs), **inputs, "mask": MASK}
    plain = ReinforcePP().loss(LogProbs(log_probs=new), batch)
    assert torch.equal(algorithm.loss(LogProbs(log_probs=new), batch), plain)
    assert "kl" in algorithm.measure(LogProbs(log_probs=new), batch)


def test_advantages_of_reinforce_pp_baseline_match_the_formula():
    result = ReinforcePPBaseline().targets(scores(), rollouts(), {})["advantages"]

    def centred(row):
        group = [
            REWARDS[o] for o in ROWS if GROUPS[o] == GROUPS[row] and not math.isnan(REWARDS[o])
        ]
        return REWARDS[row] - statistics.mean(group)

    scored = [row for row in ROWS if not math.isnan(REWARDS[row])]
    chosen = [centred(row) for row in scored for t in POSITIONS if MASK[row, t]]
    mean, std = statistics.mean(chosen), statistics.stdev(chosen)
    expected = per_decision(lambda row, _: (centred(row) - mean) / std if row in scored else 0.0)
    torch.testing.assert_close(result, expected.float(), rtol=1e-5, atol=1e-6)


LEAD_REWARDS = [1.0, 0.0, 1.0, 1.0, 1.0, 0.2]
FORMAT = [0.0, 1.0, NAN, 0.0, 1.0, 1.0]


def expected_lead(config):
    """The formulas of the paper, and a second reward that is added with weight 0.5."""
    lengths = MASK.sum(dim=1).tolist()
    weighted = []
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
        accuracy = len(right) / len(members)
        divisor = statistics.stdev(total.values()) + config.epsilon
        for row in members:
            advantage = (total[row] - statistics.mean(total.values())) / divisor
            rate = accuracy if advantage > 0 else 1 - accuracy
            width = config.highest - config.lowest
            weight = config.lowest + width / (1 + math.exp(config.slope * (rate - config.middle)))
            weighted.append((row, advantage * weight))
    return [value for _, value in sorted(weighted)]


@pytest.mark.parametrize(
    "config", [{}, {"alpha": 0.5, "penalty": 0.0, "lowest": 1.0}, {"accuracy": "reward"}]
)
def test_lead_matches_the_formulas_of_the_paper(config):
    algorithm = LEAD(LEAD.Config(**config))
    algorithm.take_accuracy("reward", 1.0)
    result = algorithm.targets(scores(LEAD_REWARDS, format=FORMAT), rollouts(), {})["advantages"]
    assert result.tolist() == pytest.approx(expected_lead(algorithm.config), rel=1e-5)


@pytest.mark.parametrize(
    ("config", "right"),
    [
        ({}, [True, True, False]),
        ({"threshold": 1.0}, [True, False, False]),
        ({"accuracy": "format"}, [False, False, True]),
    ],
)
def test_lead_calls_right_what_the_run_does(config, right):
    """Also a sum of tenths that is below 1 by rounding."""
    tenths = sum([0.1] * 10)
    assert tenths < 1
    algorithm = LEAD(LEAD.Config(**config))
    algorithm.take_accuracy("reward", 0.5)
    batch = rollouts(torch.ones(3, 2, dtype=torch.bool), torch.zeros(3, dtype=torch.int64))
    values = scores([tenths, 0.5, 0.0], format=[0.5, 0.5, 1.0])
    only_format = "accuracy" in config
    values = replace(values, weights=(0.0, 1.0) if only_format else (1.0, 0.0))
    advantage = algorithm.targets(values, batch, {})["advantages"]
    assert (advantage > 0).tolist() == right


def test_lead_prefers_short_and_rare_right_answers():
    """A short right answer has the larger advantage, and a rare one a larger weight."""
    lengths = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
    batch = rollouts(lengths, torch.zeros(4, dtype=torch.int64))
    frequent, rare = (
        LEAD().targets(scores(values), batch, {})["advantages"]
        for values in ([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0])
    )
    assert frequent[0] > frequent[1] > 0 > frequent[2] == frequent[3]
    assert rare[3] / rare[0].abs() > 3 * 1.5
    all_wrong = LEAD().targets(scores([0.0] * 4), batch, {})["advantages"]
    assert not all_wrong.any()


def test_lead_learns_from_right_answers_of_different_lengths():
    """Group 0: all right, with 3, 1 and 3 decisions. Group 1: all wrong, with different rewards."""
    values = scores([1.0, 0.0, 1.0, 0.5, 0.2, 1.0])
    algorithm = LEAD()
    assert algorithm.no_signal(values, rollouts()).tolist() == (GROUPS == 1).tolist()
    advantage = algorithm.targets(values, rollouts(), {})["advantages"]
    assert ((advantage == 0) == algorithm.no_signal(values, rollouts())).all()
    equal = rollouts(mask=torch.ones(6, 2, dtype=torch.bool))
    assert algorithm.no_signal(values, equal).all()


def test_reinforce_pp_learns_from_groups_without_variance_that_differ_from_the_batch():
    values = scores([1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    algorithm = ReinforcePP(ReinforcePP.Config(beta=0.1))
    assert GRPO().no_signal(values, rollouts()).all()
    assert ReinforcePPBaseline().no_signal(values, rollouts()).all()
    assert not algorithm.no_signal(values, rollouts()).any()
    assert algorithm.no_signal(scores([0.3] * 6), rollouts()).all()
    unscored = scores([1.0, NAN, 0.0, NAN, NAN, 1.0])
    assert algorithm.no_signal(unscored, rollouts()).tolist() == (GROUPS == 1).tolist()


NOISE = [0.970, 0.0, 0.971, 0.5, 1.0, 0.969]
"""Rewards that differ by noise in group 0, and by more in group 1."""


@pytest.mark.parametrize("kind", [GRPO, DrGRPO, RLOO, DAPO, GDPO, ReinforcePPBaseline])
def test_a_group_that_differs_by_noise_is_dead(kind):
    """As if its rewards were equal: it is refilled, counted, and has no advantage."""
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


@pytest.mark.parametrize("supervision", ["rewards", "returns"])
@pytest.mark.parametrize("scale", ["group", "none"])
def test_the_floor_holds_for_step_rewards(supervision, scale):
    steps = torch.full(MASK.shape, NAN, dtype=torch.float64)
    steps[:, 0] = torch.tensor(NOISE, dtype=torch.float64)
    values = scores([NAN] * 6, steps=steps)
    options = {"steps": supervision, "scale": scale}
    without, with_floor = (GRPO(GRPO.Config(**options, least_std=least)) for least in (0.0, 0.01))
    assert not without.no_signal(values, rollouts()).any()
    assert with_floor.no_signal(values, rollouts()).tolist() == (GROUPS == 0).tolist()


def test_gdpo_compares_the_std_of_each_reward_with_the_floor():
    """Noise of one reward is left out, whatever its weight, and the other reward still teaches."""
    both = torch.tensor([NOISE, [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]], dtype=torch.float64).T
    values = Scores(
        names=("noisy", "clear"),
        weights=(100.0, 1.0),
        values=both,
        failed=torch.zeros(6, dtype=torch.bool),
    )
    algorithm = GDPO(GDPO.Config(least_std=0.01))
    first = algorithm.relative(values, rollouts())[GROUPS == 0]
    clear = torch.tensor([-1.0, 0.5, 0.5], dtype=torch.float64)
    assert torch.allclose(first / first[1], clear / clear[1])


def test_the_floor_leaves_verifiable_rewards_as_they_are():
    """The smallest std above 0 of rewards of 0 and 1 is 1 / sqrt(G)."""
    default = GRPO.Config().least_std
    for size in (2, 16, 1024):
        one_right = torch.eye(size, dtype=torch.float64)[0]
        groups = torch.zeros(size, dtype=torch.int64)
        assert float(advantages.group_std(one_right, groups)[0]) == pytest.approx(size**-0.5)
        left, right = (
            advantages.group_relative(one_right, groups, least_std=least)
            for least in (0.0, default)
        )
        assert torch.equal(left, right)


def test_returns_differ_if_the_number_of_equal_steps_differs():
    """Group 0: one or two steps with reward 1. Group 1: always a step with 1, then one with 0."""
    steps = torch.full(MASK.shape, NAN, dtype=torch.float64)
    for row in ROWS:
        steps[row, :2] = torch.tensor([1.0, 0.0] if GROUPS[row] else [1.0, 1.0])
    steps[2, 1] = NAN
    values = scores([NAN] * 6, steps=steps)
    algorithms = {name: GRPO(GRPO.Config(steps=name)) for name in ("rewards", "returns")}
    dead = {name: algorithm.no_signal(values, rollouts()) for name, algorithm in algorithms.items()}
    assert dead["rewards"].tolist() == (GROUPS == 0).tolist()
    assert dead["returns"].tolist() == (GROUPS == 1).tolist()
    for name, algorithm in algorithms.items():
        active = algorithm.active(algorithm.targets(values, rollouts(), {}))
        assert not active[dead[name]].any()
        assert active[~dead[name]].any()


def test_the_accuracy_of_lead_must_name_a_reward():
    algorithm = LEAD(LEAD.Config(accuracy="acuracy"))
    with pytest.raises(UserError, match="of the rewards reward, accuracy, received 'acuracy', did"):
        algorithm.targets(scores(accuracy=REWARDS), rollouts(), {})


# ---- objectives


def expected_loss(form, ratio, advantage, log_prob, product):
    """The loss of one decision; `product` is the ratio of its completion."""
    if form == "capped":
        ratio = min(ratio, 1.4)
        return -min(ratio * advantage, max(0.8, min(1.2, ratio)) * advantage)
    if form == "dual":  # as verl writes it
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
"""The weight of their log-probs has no gradient, so finite differences keep it constant."""


@pytest.mark.parametrize("form", LOSSES)
def test_losses_and_gradients_match_formulas_and_finite_differences(form):
    old, new = tensors(count=2)
    decision_advantages = tensors(2)[0]
    algorithm = LOSSES[form]

    def loss_at(row, t, log_prob, fixed_ratio):
        """The loss of a decision with this log-prob; fixed_ratio: use the ratio of `new`."""
        ratio = math.exp((new[row, t] if fixed_ratio else log_prob) - old[row, t])
        product = math.exp(
            math.fsum(float(new[row, p] - old[row, p]) for p in POSITIONS if MASK[row, p])
        )
        return expected_loss(form, ratio, float(decision_advantages[row, t] + 3), log_prob, product)

    values = new.clone().requires_grad_()
    batch = {"old_log_probs": old, "mask": MASK, "advantages": decision_advantages + 3}
    loss = algorithm.surrogate(LogProbs(log_probs=values), batch)
    fixed_ratio = form in SCORE_FUNCTIONS
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


def test_is_clipped_marks_decisions_that_the_cap_leaves_without_gradient():
    log_ratio = torch.tensor([[0.5, 1.0, 1.3, 1.5, 5.0]] * 2, dtype=torch.float64).log()
    log_ratio.requires_grad_()
    rewards = torch.tensor([1.0, -1.0], dtype=torch.float64)
    limits = {"low": 0.2, "high": 0.2, "cap": 1.4}
    objective.clipped(log_ratio, rewards, **limits).sum().backward()
    cut = objective.is_clipped(log_ratio.detach(), rewards, **limits)
    assert torch.equal(cut, log_ratio.grad == 0)
    assert cut.tolist() == [[False, False, True, True, True], [True, False, False, True, True]]


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
        phi = objective.vespo_weights(
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


# ---- Gaussians


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


@pytest.mark.parametrize("action_shape", [(), (5, 2)])
def test_the_exact_kl_is_that_of_normal_distributions(action_shape):
    generator = torch.Generator().manual_seed(0)
    mean, reference_mean = (
        torch.randn((2, 3, *action_shape), generator=generator).double() for _ in range(2)
    )
    std = torch.rand((2, 3), generator=generator).double() + 0.1
    broadcast_std = std.view(2, 3, *[1] * len(action_shape))
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, broadcast_std),
        torch.distributions.Normal(reference_mean, broadcast_std),
    )
    exact = exact.flatten(2).mean(dim=2) if action_shape else exact
    torch.testing.assert_close(objective.gaussian_kl(mean, reference_mean, std), exact)
    algorithm = GRPO(GRPO.Config(beta=0.1, kl="exact"))
    assert (algorithm.reference, algorithm.needs) == ({"mean"}, {"log_probs", "mean", "std"})
    current = LogProbs(log_probs=std, extra={"mean": mean, "std": std})
    torch.testing.assert_close(algorithm.kl(current, {"reference_mean": reference_mean}), exact)


def test_advantage_clip_bounds_advantages_on_both_sides():
    targets = RLOO(RLOO.Config(advantage_clip=0.5, length=4)).targets(scores(), rollouts(), {})
    assert targets["advantages"].tolist() == [0.5, -0.5, -0.5, 0.5, -0.5, 0.0]


# ---- wrong configurations


@pytest.mark.parametrize(
    ("kind", "config", "message"),
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
def test_wrong_configurations_are_refused(kind, config, message):
    with pytest.raises(ValidationError, match=message):
        kind.Config(**config)
