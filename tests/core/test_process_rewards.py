"""Process rewards: rewards of steps within a completion."""

import math
from dataclasses import replace

import pytest
import torch

import groupwise
from groupwise.advantages import (
    group_relative,
    process_returns,
    process_supervision,
    zero_variance_of_steps,
)
from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError
from groupwise.rewards import Reward, RewardError, Scores
from groupwise.scoring.scorer import Scorer

NAN = math.nan


def test_an_advantage_is_the_sum_of_normalised_rewards_of_steps_that_end_here_or_later():
    steps = torch.tensor(
        [[NAN, 1.0, NAN, 3.0], [2.0, NAN, NAN, NAN], [5.0, 7.0, NAN, NAN]], dtype=torch.float64
    )
    groups = torch.tensor([0, 0, 1])
    advantages = process_supervision(steps, groups, epsilon=1e-4)

    rewards_0 = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    a = (rewards_0 - rewards_0.mean()) / (rewards_0.std() + 1e-4)
    rewards_1 = torch.tensor([5.0, 7.0], dtype=torch.float64)
    b = (rewards_1 - rewards_1.mean()) / (rewards_1.std() + 1e-4)
    expected = [
        [a[0] + a[1], a[0] + a[1], a[1], a[1]],
        [a[2], 0, 0, 0],
        [b[0] + b[1], b[1], 0, 0],
    ]
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64))


def test_scale_none_only_centres_and_scale_batch_divides_by_the_std_of_all_steps():
    steps = torch.tensor([[1.0, 3.0], [10.0, NAN]], dtype=torch.float64)
    groups = torch.tensor([0, 1])
    assert process_supervision(steps, groups, scale="none").tolist() == [[0.0, 1.0], [0.0, 0.0]]
    std = torch.tensor([1.0, 3.0, 10.0], dtype=torch.float64).std()
    advantages = process_supervision(steps, groups, scale="batch", epsilon=0.0)
    torch.testing.assert_close(advantages[0, 1], 1 / std)


def returns_by_definition(steps, groups, scale, epsilon):
    """The definition, one completion and one decision at a time, in Python floats."""
    rewards = [[r for r in row if not math.isnan(r)] for row in steps.tolist()]
    members = {g: [i for i, h in enumerate(groups.tolist()) if h == g] for g in groups.tolist()}
    members = {g: [i for i in rows if rewards[i]] for g, rows in members.items()}
    returns, centred = {}, {}
    for rows in members.values():
        for k in range(max((len(rewards[i]) for i in rows), default=0)):
            own = {i: math.fsum(rewards[i][k:]) for i in rows}
            returns |= {(i, k): value for i, value in own.items()}
            centred |= {(i, k): v - math.fsum(own.values()) / len(own) for i, v in own.items()}

    def std(values):
        mean = math.fsum(values) / len(values)
        return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / max(1, len(values) - 1))

    result = []
    for i, (row, g) in enumerate(zip(steps.tolist(), groups.tolist(), strict=True)):
        group_values = [centred[key] for key in centred if key[0] in members[g]]
        divisor = {
            "none": 1.0,
            "group": std(group_values or [0.0]) + epsilon,
            "batch": std(list(returns.values())) + epsilon,
        }[scale]
        k, own = 0, []
        for reward in row:
            own.append(centred.get((i, k), 0.0) / divisor)
            k += not math.isnan(reward)
        result.append(own)
    return torch.tensor(result, dtype=torch.float64)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_returns_are_compared_with_those_of_the_group_from_the_same_step(scale):
    steps = torch.randn(12, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    steps[torch.rand(12, 6, generator=torch.Generator().manual_seed(4)) < 0.5] = NAN
    steps[2] = NAN
    groups = torch.tensor([5, 1, 5, 1, 9, 5, 1, 9, 5, 1, 9, 7])
    steps[10] = NAN
    expected = returns_by_definition(steps, groups, scale, 1e-4)
    advantages = process_returns(steps, groups, scale=scale, epsilon=1e-4)
    torch.testing.assert_close(advantages, expected, rtol=1e-9, atol=1e-9)


def test_one_step_at_the_end_has_the_advantage_of_an_outcome_reward():
    rewards, groups = torch.tensor([1.0, 0.0, 1.0, 5.0, 2.0]), torch.tensor([0, 0, 0, 1, 1])
    steps = torch.full((5, 3), NAN)
    steps[:, 2] = rewards
    expected = group_relative(rewards, groups).unsqueeze(1).expand(5, 3)
    torch.testing.assert_close(process_returns(steps, groups), expected)
    torch.testing.assert_close(process_supervision(steps, groups), expected)


def test_more_steps_raise_the_advantage_by_rewards_but_not_by_returns():
    """Two completions have equal sums, one with twice the steps; a third one has sum 0.

    With `rewards`, as in the paper, further steps above the mean increase the advantage.
    """
    steps = torch.tensor([[0.5, 0.5, NAN], [1.0, NAN, NAN], [0.0, 0.0, 0.0]], dtype=torch.float64)
    groups = torch.zeros(3, dtype=torch.int64)
    returns, rewards = process_returns(steps, groups), process_supervision(steps, groups)
    assert returns[0, 0] == returns[1, 0] > 0 > returns[2, 0]
    assert rewards[0, 0] != rewards[1, 0]
    longer = torch.tensor([[1.0, 1.0, 1.0], [1.0, NAN, NAN], [0.0, NAN, NAN]])
    assert process_supervision(longer, groups)[0, 0] > 2 * process_supervision(longer, groups)[1, 0]


def test_without_steps_there_are_no_returns():
    no_rows = torch.empty(0, 4)
    assert process_returns(no_rows, torch.empty(0, dtype=torch.int64)).shape == (0, 4)
    no_steps = torch.full((2, 3), NAN)
    assert not process_returns(no_steps, torch.tensor([0, 0])).any()


def test_exactly_groups_of_equal_steps_are_dead():
    steps = torch.tensor([[1.0, NAN], [NAN, 1.0], [1.0, 2.0], [NAN, NAN], [NAN, NAN], [4.0, NAN]])
    groups = torch.tensor([0, 0, 1, 1, 2, 2])
    dead = zero_variance_of_steps(steps, groups)
    assert dead.tolist() == [True, True, False, False, True, True]


def per_symbol(completions, completion_ids, **_):
    """A step ends at each 1: the first has reward 1, later ones 2. Other decisions end no step."""
    rewards = []
    for symbols in completion_ids:
        count, steps = 0, []
        for symbol in symbols:
            steps.append((1.0 if count == 0 else 2.0) if symbol == 1 else None)
            count += symbol == 1
        rewards.append(steps)
    return rewards


def constant(completions, **_):
    return [1.0] * len(completions)


def test_scores_keep_steps_and_their_sum(lab):
    rollouts = sampled(lab)
    scores = Scorer(
        [
            Reward(name="steps", function=per_symbol, weight=0.5),
            Reward(name="constant", function=constant),
        ]
    )(rollouts)
    assert scores.judges_steps == {"steps"}
    for row, symbols in enumerate(rollouts.facts["completion_ids"]):
        positions = [position for position, symbol in enumerate(symbols) if symbol == 1]
        expected = [1.0, *[2.0] * (len(positions) - 1)] if positions else []
        assert scores.steps[row][positions].tolist() == [0.5 * value for value in expected]
        assert int((~scores.steps[row].isnan()).sum()) == len(positions)
        column = scores.column("steps")[row]
        assert column.isnan() if not positions else column == sum(expected)
        assert scores.total[row] == 1.0 + 0.5 * sum(expected)
        assert scores.outcome[row] == 1.0


def test_the_number_of_judged_steps_is_a_metric(lab):
    """For every reward with steps, unless the reward logs its own `steps`."""
    rollouts = sampled(lab)

    def none(completions, completion_ids):
        return [[None] * len(ids) for ids in completion_ids]

    def logs_steps(completions, completion_ids, log_metric):
        log_metric("steps", 7)
        return none(completions, completion_ids)

    rewards = [
        *outcome(),
        *(Reward(name=f.__name__, function=f) for f in (per_symbol, none, logs_steps)),
    ]
    ones = sum(symbol == 1 for ids in rollouts.facts["completion_ids"] for symbol in ids)
    assert Scorer(rewards)(rollouts).metrics == {
        "per_symbol/steps": (ones, len(rollouts)),
        "none/steps": (0.0, len(rollouts)),
        "logs_steps/steps": (7.0 * len(rollouts), len(rollouts)),
    }


def test_equal_outcomes_with_different_steps_have_the_gradient_of_the_formula(lab):
    """Compared with autograd through the objective with process supervision."""
    policy, algorithm = lab.Tabular(), GRPO()
    rollouts = sampled(lab, policy)
    scores = Scorer([Reward(name="steps", function=per_symbol), *outcome()])(rollouts)
    groups = rollouts.groups
    assert not bool(scores.no_signal(groups).all())
    targets = algorithm.targets(scores, rollouts, {})
    assert targets["advantages"].shape == rollouts.mask.shape
    assert bool(algorithm.active(targets).any())

    lab.updater(policy, algorithm, 7).backward(
        scores=scores, rollouts=rollouts, outputs={"old_log_probs": rollouts.sampler_log_probs}
    )
    gradient = policy.table.grad.clone()

    policy.table.grad = None
    advantages = process_supervision(scores.steps, groups).float()
    lengths = rollouts.mask.sum(1, keepdim=True)
    weights = rollouts.mask / (len(rollouts) * lengths)
    ratio = (policy(rollouts).log_probs - rollouts.sampler_log_probs).exp()
    (-(ratio * advantages) * weights).sum().backward()
    assert lab.gap(gradient, policy.table.grad) < 1e-6


def test_advantages_are_returns_if_configured(lab):
    rollouts = sampled(lab)
    scores = Scorer([Reward(name="steps", function=per_symbol)])(rollouts)
    algorithm = GRPO(GRPO.Config(steps="returns"))
    expected = process_returns(scores.steps, rollouts.groups).float()
    assert torch.equal(algorithm.targets(scores, rollouts, {})["advantages"], expected)


def test_selecting_and_joining_scores_keeps_steps(lab):
    rollouts = sampled(lab)
    scores = Scorer([Reward(name="steps", function=per_symbol)])(rollouts)
    half = len(rollouts) // 2
    parts = [scores.select(torch.arange(half)), scores.select(torch.arange(half, len(rollouts)))]
    plain = lab.scores_of(torch.ones(3))
    joined = Scores.concat(parts)
    torch.testing.assert_close(joined.steps, scores.steps, equal_nan=True)
    assert joined.judges_steps == {"steps"}
    assert plain.steps is None


def test_step_rewards_are_one_for_each_decision_and_placed_by_the_mask(lab):
    """Positions in a hole, such as a tool's answer, have no step reward."""
    rollouts = sampled(lab).select([0, 1])
    mask = torch.tensor([[1, 1, 0, 0, 0, 1], [0, 1, 1, 0, 0, 0]]).bool()
    holes = replace(rollouts, mask=mask, sampler_log_probs=None, trajectory={})

    def judge(completions):
        return [[1.0, None, 3.0], torch.tensor([4.0, 0.5])]

    scores = Scorer([Reward(name="judge", function=judge, weight=2.0)])(holes)
    expected = torch.full((2, 6), NAN, dtype=torch.float64)
    expected[0, 0], expected[0, 5], expected[1, 1], expected[1, 2] = 2.0, 6.0, 8.0, 1.0
    torch.testing.assert_close(scores.steps, expected, equal_nan=True)
    assert scores.values.flatten().tolist() == [4.0, 4.5]
    with pytest.raises(RewardError, match="returned 6 step rewards for 3 decisions"):
        Scorer([Reward(name="wide", function=lambda completions: [[1.0] * 6] * 2)])(holes)


def test_a_step_reward_that_is_nan_fails_its_completion_alone(lab):
    rollouts = sampled(lab).select([0, 1])

    def judge(completions, completion_ids):
        return [
            [None] * (len(ids) - 1) + [end]
            for ids, end in zip(completion_ids, (NAN, 2.0), strict=True)
        ]

    scores = Scorer([Reward(name="judge", function=judge)])(rollouts)
    assert scores.failed.tolist() == [True, False]
    assert scores.steps[0].isnan().all()
    assert scores.total.nan_to_num(-1.0).tolist() == [-1.0, 2.0]


def test_the_error_for_a_wrong_number_of_steps_names_the_reward(lab):
    def short(completions, completion_ids, **_):
        return [[1.0] * len(ids) for ids in completion_ids[:-1]] + [[1.0] * 99]

    rollouts = sampled(lab)
    with pytest.raises(RewardError, match=r"'short' returned 99 step rewards for \d+ decisions"):
        Scorer([Reward(name="short", function=short)])(rollouts)


def test_a_number_among_step_rewards_is_refused(lab):
    def mixed(completions, completion_ids, **_):
        return [1.0, *([1.0] * len(ids) for ids in completion_ids[1:])]

    with pytest.raises(RewardError, match=r"returned 1.0 beside lists of step rewards"):
        Scorer([Reward(name="mixed", function=mixed)])(sampled(lab))


def test_an_infinite_step_reward_is_refused(lab):
    def broken(completions, completion_ids, **_):
        return [[math.inf] * len(ids) for ids in completion_ids]

    with pytest.raises(RewardError, match="returned inf"):
        Scorer([Reward(name="broken", function=broken)])(sampled(lab))


def test_training_on_step_rewards_raises_the_reward(lab):
    trainer = lab.trainer(reward=per_symbol, learning_rate=0.1, groups_per_step=8, group_size=8)
    first, *_, last = [lab.step(trainer) for _ in range(25)]
    assert last["reward"] > first["reward"] + 1


class WithOptionalFact:
    """A policy with an optional fact; `computed` counts how often it was computed."""

    optional_facts = frozenset({"ones"})
    computed, asked_for = 0, frozenset()

    def prepare(self, *, outputs, facts):
        self.asked_for = facts

    def sample(self, prompts, **options):
        rollouts = super().sample(prompts, **options)
        if "ones" not in self.asked_for:
            return rollouts
        self.computed += 1
        ones = [sum(symbol == 1 for symbol in ids) for ids in rollouts.facts["completion_ids"]]
        return replace(rollouts, facts={**rollouts.facts, "ones": ones})


def uses_fact(completions, ones):
    return [float(count) for count in ones]


def takes_all_columns(completions, **columns):
    assert "ones" not in columns
    return [1.0] * len(completions)


@pytest.mark.parametrize("key", ["rewards", "watch"])
def test_an_optional_fact_is_computed_only_if_a_reward_names_it(lab, tmp_path, key):
    policy = type("Toy", (WithOptionalFact, lab.Tabular), {})()
    config = {
        "policy": policy,
        "prompts": {"name": "rows", "rows": lab.rows(4), "held_out": 0.5},
        "rewards": constant,
        "train": {"steps": 1, "groups_per_step": 2, "group_size": 2},
        "quiet": True,
    }
    groupwise.train(**{**config, key: [{"name": uses_fact}]}, output=tmp_path / "named")
    assert policy.computed > 0
    policy.computed = 0
    groupwise.train(**{**config, "rewards": takes_all_columns}, output=tmp_path / "any")
    assert policy.computed == 0
    other = {**config, "policy": lab.Tabular(), "rewards": uses_fact}
    with pytest.raises(UserError, match="needs the column 'ones'"):
        groupwise.train(**other, output=tmp_path / "other")


def outcome():
    return [Reward(name="constant", function=constant)]


def sampled(lab, policy=None):
    policy = policy or lab.Tabular()
    with torch.no_grad():
        return policy.sample(lab.rows(4), group_size=4, seeds=list(range(16)))
