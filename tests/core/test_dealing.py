"""Rollouts are dealt among processes by what their passes cost."""

import pickle
import random
from dataclasses import replace

import pytest
import torch
from accelerate.utils import gather_object
from hypothesis import given
from hypothesis import strategies as st
from tests.core.launching import call

from groupwise.algorithms.grpo import GRPO
from groupwise.learning.dealing import loads, places
from groupwise.learning.share import Share
from groupwise.record.gather import on_accelerator

COSTS = st.lists(st.lists(st.integers(0, 50), max_size=9), min_size=1, max_size=6)


def home(costs):
    return [[process] * len(row) for process, row in enumerate(costs)]


@given(COSTS)
def test_no_process_has_more_than_by_the_rule_s_bound(costs):
    """Graham's bound for any order: at most the mean and the most expensive rollout."""
    chosen = places(costs)
    assert [len(row) for row in chosen] == [len(row) for row in costs]
    most = max((cost for row in costs for cost in row), default=0)
    assert max(loads(costs, chosen)) <= sum(map(sum, costs)) / len(costs) + most
    assert chosen == places(costs)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 6))
def test_where_all_have_the_same_to_do_nothing_moves(row, count):
    assert places([row] * count) == home([row] * count)


@given(COSTS)
def test_what_costs_nothing_stays(costs):
    for process, (row, chosen) in enumerate(zip(costs, places(costs), strict=True)):
        assert all(there == process for cost, there in zip(row, chosen, strict=True) if not cost)


@pytest.mark.parametrize("processes", [8, 64])
def test_skewed_lengths_leave_no_process_far_above_the_mean(processes):
    """Groups of 16 with lengths that are correlated and cut, two groups a process."""
    drawn = random.Random(processes)
    for _ in range(5):
        costs = []
        for _ in range(processes):
            scales = [drawn.lognormvariate(8.5, 0.6) for _ in range(2)]
            lengths = [min(32768, 16 + drawn.expovariate(1 / s)) for s in scales for _ in range(16)]
            costs.append(lengths)
        mean = sum(map(sum, costs)) / processes
        assert max(loads(costs, home(costs))) > 1.3 * mean
        assert max(loads(costs, places(costs))) <= 1.05 * mean


def test_a_share_is_sent_as_it_is(lab):
    """Columns of every form, and a tensor that rows share."""
    share = Share.of(*drawn(lab), process=1)
    prompt = torch.arange(9)[:3]
    trajectory = {**share.rollouts.trajectory, "prompt_ids": [prompt] * len(share)}
    trajectory["path"] = list(torch.rand(len(share), 3, 2))
    share = replace(share, rollouts=replace(share.rollouts, trajectory=trajectory))
    share = share.select(torch.tensor([5, 1, 1]))
    sent, there = pickle.loads(pickle.dumps(share.packed()))
    assert not there
    received = sent.unpacked(there, torch.device("cpu"))
    assert received.homes.tolist() == [[1, 5], [1, 1], [1, 1]]
    assert received.scores.values.equal(share.scores.values)
    for name, column in share.rollouts.trajectory.items():
        pairs = zip(received.rollouts.trajectory[name], column, strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    ids = received.rollouts.trajectory["prompt_ids"]
    assert ids[0] is ids[2]
    assert ids[0].untyped_storage().nbytes() == 3 * 8
    assert received.rollouts.completions == [None] * 3


def test_columns_of_the_device_come_back_to_one(lab):
    share = Share.of(*drawn(lab), process=0)
    sent, _ = share.packed()
    rollouts = sent.unpacked(frozenset({"mask"}), torch.device("meta")).rollouts
    assert rollouts.mask.device.type == "meta"
    assert rollouts.groups.device.type == "cpu"
    assert on_accelerator(rollouts) == {"mask"}


def drawn(lab):
    """The rollouts of a step, as a `Share` is made of them."""
    trainer = lab.trainer(held_out=0.0)
    step = trainer.experience.next(trainer.state)
    rollouts = step.rollouts_of("policy")
    return rollouts, lab.gather(rollouts), step.scores


def alone(lab, folder):
    """One group of eight for two processes: the passes of each, and rewards with advantages.

    That the gradient is the same is the law of `test_invariance.py`.
    """
    results = {}
    for name, portable in (("dealt", True), ("as sampled", False)):
        policy = lab.Tabular()
        policy.portable = portable
        trainer = lab.trainer(
            policy, reward=first_symbols, groups_per_step=1, group_size=8, microbatch=1
        )
        step = trainer.experience.next(trainer.state)
        policy.forward_sizes.clear()
        sampled = step.rollouts_of("policy")
        dummy = step.dummies["policy"]
        metrics = trainer.learner.learn(sampled, step.scores, 0, dummy)
        ours = [(rollout.rewards[0], rollout.advantage) for rollout in sampled]
        results[name] = {
            "passes": gather_object([len(policy.forward_sizes)]),
            "group": gather_object([ours]),
            "slowest": metrics.get("slowest_process"),
        }
    return results


def first_symbols(completions, **_):
    return [float(len(text)) + 0.1 * text.count("1") for text in completions]


@pytest.mark.slow
def test_a_group_is_divided_among_idle_processes(tmp_path):
    results = call(alone, tmp_path, 2)
    dealt, sampled = results["dealt"], results["as sampled"]
    assert max(dealt["passes"]) < max(sampled["passes"])
    assert dealt["slowest"] < 1.3
    assert sampled["slowest"] is None
    assert dealt["group"] == sampled["group"]  # advantages come back to where the reward is
    group, none = dealt["group"]
    assert len(group) == 8
    assert not none
    ranked = sorted(group)
    assert [each for _, each in ranked] == sorted(each for _, each in group)
    assert ranked[0][1] < 0 < ranked[-1][1]


def flat_beside_mixed(lab, folder):
    """Two groups of eight on two processes, of which the first has equal rewards: the passes of
    each process, those of dummies among them, and what was observed."""
    results = {}
    for name, config in {"sparse": {}, "dense": {"beta": 0.1}}.items():
        algorithm = GRPO(GRPO.Config(**config))
        trainer = lab.trainer(
            lab.Tabular(),
            algorithm,
            source=lab.rows(2),
            reward=flat_for_even_prompts,
            groups_per_step=2,
            group_size=8,
            microbatch=1,
            held_out=0.0,
        )
        step = trainer.experience.next(trainer.state)
        observed, observe = [], algorithm.observe
        algorithm.observe = lambda *views: observed.append(1) or observe(*views)  # noqa: B023
        trainer.policy.forward_sizes.clear()
        metrics = trainer.learner.learn(
            step.rollouts_of("policy"), step.scores, 0, step.dummies["policy"]
        )
        results[name] = {
            "passes": gather_object([len(trainer.policy.forward_sizes)]),
            "flat": gather_object([len({*step.scores.total.tolist()}) == 1]),
            "slowest": metrics["slowest_process"],
            "observed": len(observed),
        }
    return results


def flat_for_even_prompts(completions, prompts, **_):
    return [
        float(int(prompt.split()[1]) % 2) * (len(text) + 0.1 * text.count("1"))
        for prompt, text in zip(prompts, completions, strict=True)
    ]


@pytest.mark.slow
def test_what_gets_no_pass_costs_nothing(tmp_path):
    results = call(flat_beside_mixed, tmp_path, 2)
    assert sorted(results["sparse"]["flat"]) == [False, True]
    assert max(results["sparse"]["passes"]) < 8  # the mixed group's are divided
    assert results["sparse"]["slowest"] < 1.3
    assert sum(results["dense"]["passes"]) >= 2 * 16  # with a KL each has two
    assert results["sparse"]["observed"] == results["dense"]["observed"] == 1
