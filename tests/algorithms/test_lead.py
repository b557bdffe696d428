"""GRPO-LEAD, compared with the formulas of its paper."""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from tests.six_rollouts import GROUPS, MASK, NAN, REWARDS, ROWS, rollouts, scores

from groupwise.kit.errors import UserError
from groupwise_algorithms.lead import LEAD

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


def test_the_accuracy_of_lead_must_name_a_reward():
    algorithm = LEAD(LEAD.Config(accuracy="acuracy"))
    with pytest.raises(UserError, match="of the rewards reward, accuracy, received 'acuracy', did"):
        algorithm.targets(scores(accuracy=REWARDS), rollouts(), {})


def test_a_negative_penalty_is_refused():
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        LEAD.Config(penalty=-1.0)
