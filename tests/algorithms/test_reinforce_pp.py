"""REINFORCE++ with and without a baseline, compared with loops in plain Python."""

import math
import statistics

import pytest
import torch
from pydantic import ValidationError
from tests.six_rollouts import (
    GROUPS,
    MASK,
    NAN,
    POSITIONS,
    REWARDS,
    ROWS,
    per_decision,
    rollouts,
    scores,
    tensors,
)

from groupwise import LogProbs
from groupwise.algorithms.grpo import GRPO
from groupwise_algorithms.reinforce_pp import ReinforcePP, whitened
from groupwise_algorithms.reinforce_pp_baseline import ReinforcePPBaseline


def test_whitening_subtracts_the_mean_and_divides_by_the_std():
    values = tensors()[0]
    result = whitened(values, MASK, epsilon=1e-3)
    chosen = [float(values[row, t]) for row in ROWS for t in POSITIONS if MASK[row, t]]
    mean, std = statistics.mean(chosen), statistics.stdev(chosen)
    expected = per_decision(lambda row, t: (float(values[row, t]) - mean) / (std + 1e-3))
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    # The computed mean of three times 0.1 is not 0.1; equal values must still give exactly 0.
    assert not whitened(torch.full((1, 3), 0.1), torch.ones(1, 3).bool()).any()
    assert not whitened(values, torch.zeros_like(MASK)).any()


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


def test_reinforce_pp_learns_from_groups_without_variance_that_differ_from_the_batch():
    values = scores([1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    algorithm = ReinforcePP(ReinforcePP.Config(beta=0.1))
    assert GRPO().no_signal(values, rollouts()).all()
    assert ReinforcePPBaseline().no_signal(values, rollouts()).all()
    assert not algorithm.no_signal(values, rollouts()).any()
    assert algorithm.no_signal(scores([0.3] * 6), rollouts()).all()
    unscored = scores([1.0, NAN, 0.0, NAN, NAN, 1.0])
    assert algorithm.no_signal(unscored, rollouts()).tolist() == (GROUPS == 1).tolist()


@pytest.mark.parametrize("config", [{"scale": "group"}, {"kl": "k3"}])
def test_options_of_other_algorithms_are_refused(config):
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        ReinforcePP.Config(**config)
