"""Rollouts with holes: positions that are not decisions, such as a tool's answer between turns."""

from dataclasses import replace

import pytest
import torch

from groupwise import Rollouts
from groupwise.algorithms.grpo import GRPO
from groupwise.rewards import Reward
from groupwise.scoring.scorer import Scorer
from groupwise_algorithms.gspo import GSPO

MASK = [True, True, False, False, False, True]


@pytest.fixture
def tool_user(lab):
    """Completions of six symbols: two decisions, three symbols of a tool, one decision."""

    class ToolUser(lab.Tabular):
        def __init__(self, **settings):
            super().__init__(prompts=8, symbols=4, length=6, **settings)

        def sample(self, prompts, *, group_size, seeds, purpose="train"):
            rows = [row for row in prompts for _ in range(group_size)]
            chosen = []
            for seed in seeds:
                generator = torch.Generator().manual_seed(seed)
                symbols = torch.randint(1, 4, (6,), generator=generator).tolist()
                tool = [1 + sum(symbols[:2]) % 3] * 3  # the tool's answer depends on the decisions
                chosen.append([*symbols[:2], *tool, symbols[5] if purpose != "greedy" else 1])
            rollouts = masked(lab.build(rows, chosen))
            with torch.no_grad():
                log_probs = self(rollouts).log_probs
            groups = torch.arange(len(prompts)).repeat_interleave(group_size)
            return replace(rollouts, groups=groups, sampler_log_probs=log_probs)

    return ToolUser


def masked(rollouts):
    return replace(rollouts, mask=torch.tensor([MASK] * len(rollouts)))


def last_symbol_reward(completions, **_):
    """A reward that depends only on the last symbol, after the hole."""
    return [float(text[5] == "2") for text in completions]


def test_lengths_count_decisions_and_extents_end_at_the_last_one(lab, tool_user):
    rollouts = tool_user().sample(lab.rows(2), group_size=2, seeds=range(4))
    assert rollouts.lengths.tolist() == [3] * 4
    assert rollouts.extents.tolist() == [6] * 4
    ended = lab.build(lab.rows(1), [[1, 2]])
    assert (ended.lengths.tolist(), ended.extents.tolist()) == ([2], [2])
    both = Rollouts.concat([rollouts.select([0]), replace(ended, sampler_log_probs=None)])
    assert both.extents.tolist() == [6, 2]
    assert both.mask.shape == (2, 6)
    assert both.select([0]).mask.tolist() == [MASK]
    assert both.select([1]).mask.shape == (1, 2)
    assert replace(ended, mask=ended.mask & False).extents.tolist() == [0]


@pytest.mark.parametrize("budget", [1, 6, 7, 13, 1000])
@pytest.mark.parametrize("kind", [GRPO, GSPO])
def test_every_decision_has_a_gradient_and_the_hole_has_none(lab, tool_user, kind, budget):
    policy, algorithm = tool_user(seed=1), kind()
    rollouts = policy.sample(lab.rows(2), group_size=3, seeds=range(6))
    scores = lab.scores_of(torch.tensor([1.0, 0.0, 0.6, 2.0, 0.0, 0.0]))
    targets = algorithm.targets(scores, rollouts, {})
    current = policy(rollouts)
    batch = {**targets, "mask": rollouts.mask, "old_log_probs": current.log_probs.detach()}
    algorithm.loss(current, batch).sum().backward()
    expected = lab.gradient(policy)
    table = policy.table.grad.clone()
    assert float(table[:, 5].norm()) > 1e-3  # the decision after the hole
    assert not table[:, 2:5].any()  # the hole
    policy.zero_grad()
    metrics = lab.updater(policy, algorithm, budget).backward(
        scores=scores, rollouts=rollouts, outputs={}
    )
    assert lab.gap(lab.gradient(policy), expected) < 1e-10
    assert metrics["trained_decisions"] == 18


def test_metrics_count_only_decisions(lab, tool_user):
    trainer = lab.trainer(tool_user(), held_out=0.0, reward=last_symbol_reward)
    metrics = lab.step(trainer)
    assert metrics["length"] == metrics["length_max"] == 3
    assert metrics["trained_decisions"] % 3 == 0


def test_exactly_the_decisions_are_trained(lab, tool_user):
    policy = tool_user()
    before = policy.table.detach().clone()
    trainer = lab.trainer(policy, held_out=0.0, reward=last_symbol_reward, steps=3)
    assert lab.fit(trainer)
    changed = (policy.table.detach() - before).abs().amax(dim=(0, 2, 3))
    assert (changed > 1e-3).tolist() == MASK


def test_step_rewards_are_placed_by_the_mask(lab, tool_user):
    rollouts = tool_user().sample(lab.rows(1), group_size=2, seeds=range(2))

    def steps(completions):
        return [[1.0, None, 3.0], [None, 2.0, None]]

    scores = Scorer([Reward(name="steps", function=steps)])(rollouts)
    none = float("nan")
    expected = [[1.0, none, none, none, none, 3.0], [none, 2.0, none, none, none, none]]
    torch.testing.assert_close(
        scores.steps, torch.tensor(expected, dtype=torch.float64), equal_nan=True
    )
    advantages = GRPO().targets(scores, rollouts, {})["advantages"]
    assert advantages[0, 5] > 0 > advantages[0, 0] - advantages[0, 5]


def test_a_resumed_run_equals_an_uninterrupted_one(lab, tool_user, tmp_path):
    def make_trainer():
        return lab.trainer(tool_user(), reward=last_symbol_reward, steps=4, epochs=2)

    uninterrupted, first, second = make_trainer(), make_trainer(), make_trainer()
    for _ in range(4):
        lab.step(uninterrupted)
    for _ in range(2):
        lab.step(first)
    lab.save(first, tmp_path)
    lab.restore(second, tmp_path)
    for _ in range(2):
        lab.step(second)
    assert torch.equal(second.policy.table, uninterrupted.policy.table)
