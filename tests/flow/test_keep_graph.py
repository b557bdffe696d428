"""`keep_graph`: the first update's gradient goes through the graph of sampling's passes."""

import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
import torch
from pydantic import ValidationError

import groupwise
from groupwise.rollouts import Rollouts
from groupwise.weights import REFERENCE, KeptWeights
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.passes import latents
from groupwise_flow.passes.graphs import PASS, PLACE
from groupwise_flow.policy import FlowPolicy

SEEDS = list(range(6))


EVERY, SOME = [0, 1, 2, 3, 4, 5], [0, 1, 2, 4, 5]
VALUES = [0.0, 1.0, 5.0, 0.0, 2.0, 7.0]
"""Rewards none of which is the mean of its group, so that every rollout has a gradient."""


@pytest.mark.parametrize(
    ("settings", "rows", "limit"),
    [
        ({"guidance": 3.0, "lora": {"rank": 2}}, EVERY, 1e-6),
        # Passes of sampling then have other rows than those of an update, and round otherwise.
        ({"guidance": 3.0, "lora": {"rank": 2}}, SOME, 1e-5),
        (
            {"window": {"kind": "fixed", "size": 2, "start": 1}, "gradient_checkpointing": True},
            EVERY,
            1e-6,
        ),
    ],
)
def test_the_gradient_is_that_of_a_forward_pass_and_later_updates_make_one(
    lab, settings, rows, limit
):
    policy = lab.policy(steps=4, batch=4, keep_graph=True, **settings)
    lab.nudge(policy)
    policy.begin(0)
    rollouts = policy.sample(lab.rows, group_size=3, seeds=SEEDS).select(rows)
    columns = {k: v for k, v in rollouts.trajectory.items() if k not in (PASS, PLACE)}
    sizes = lab.calls(policy)

    def gradient(rollouts, **options):
        policy.zero_grad()
        sizes.clear()
        lab.update(policy, FlowGRPO(), rollouts, values=[VALUES[row] for row in rows], **options)
        return lab.gradient(policy), len(sizes)

    kept, few = gradient(rollouts)
    expected, many = gradient(replace(rollouts, trajectory=columns))
    assert expected.norm() > 0
    assert lab.gap(kept, expected) < limit
    assert few < many
    if "gradient_checkpointing" not in settings:  # which calls the model again
        assert few == 0
    lab.nudge(policy, size=1e-3)
    old = {"old_log_probs": rollouts.sampler_log_probs}
    _, later = gradient(rollouts, first=False, outputs=old)
    assert later == many


def test_a_graph_is_used_once_and_not_with_other_weights(lab, rounding):
    policy = lab.policy(steps=4, keep_graph=True)
    policy.begin(0)
    rollouts = policy.sample(lab.rows, group_size=1, seeds=[1, 2])
    sizes = lab.calls(policy)
    with torch.no_grad():
        policy(rollouts)
    assert sizes == [6]  # no gradient is wanted, so that the graph stays for the update
    first = policy(rollouts).log_probs
    assert sizes == [6]
    policy(rollouts)
    assert sizes == [6, 6]
    rounding.same(lambda: policy(rollouts).log_probs, first)
    policy.begin(1)
    rollouts = policy.sample(lab.rows, group_size=1, seeds=[1, 2])
    sizes.clear()
    lab.nudge(policy)
    policy(rollouts)
    assert sizes == [6]


def test_passes_with_a_picture_that_is_not_finite_keep_no_graph(lab, monkeypatch):
    """And can be trained on together with those that keep one."""
    normal = latents._normal

    def broken(seed, *arguments):
        start, noise = normal(seed, *arguments)
        return (start * torch.nan if seed == 7 else start), noise

    monkeypatch.setattr(latents, "_normal", broken)
    policy = lab.policy(steps=4, keep_graph=True)
    policy.begin(0)
    kept = policy.sample(lab.rows, group_size=1, seeds=[1, 2])
    assert not policy.portable
    other = policy.sample(lab.rows, group_size=1, seeds=[7, 8])
    assert other.failed.tolist() == [True, False]
    joined = Rollouts.concat([other, kept]).select([1, 2, 3])
    sizes = lab.calls(policy)
    parts = [rows for rows, _ in policy.microbatches(joined, 99, cut_decisions=True)]
    assert [len(part) for part in parts] == [1, 2] * 3
    for rows, decisions in policy.microbatches(joined, 99, cut_decisions=True):
        policy(joined.select(rows), decisions)
    assert len(sizes) == 3  # of three decisions of the rollout whose graph was not kept


def using(name):
    """Compute outputs and draw pictures with these kept weights, and leave by an exception."""

    def exchange(policy, weights, rows, rollouts):
        with weights.using(name), torch.no_grad():
            policy(rollouts)
            policy.sample(rows, group_size=1, seeds=[1, 2], purpose="evaluate")
        with suppress(KeyError), weights.using(name):
            raise KeyError
        return rollouts

    return exchange


def blended(policy, weights, rows, rollouts):
    weights.keep("average")
    weights.blend("average", 0.5)
    return using("average")(policy, weights, rows, rollouts)


def moved(policy, weights, rows, rollouts):
    weights.keep(REFERENCE)
    return using(REFERENCE)(policy, weights, rows, rollouts)


def restored(policy, weights, rows, rollouts):
    weights.keep("average")
    weights.restore(REFERENCE, weights.copies("average"))
    return using(REFERENCE)(policy, weights, rows, rollouts)


def ahead(policy, weights, rows, rollouts):
    """The next step is sampled before the update."""
    policy.begin(1)
    policy.sample(rows, group_size=3, seeds=range(20, 26))
    return rollouts


def replayed(policy, weights, rows, rollouts):
    """Rollouts of an earlier step are trained on, too."""
    policy.begin(1)
    now = policy.sample(rows, group_size=3, seeds=range(20, 26))
    return Rollouts.concat([now.select([0, 1, 3]), rollouts.select([2, 4, 5])])


KEEPING = {
    "graphs": {"keep_graph": True},
    "graphs, lora": {"keep_graph": True, "lora": {"rank": 2}},
    "constants": {"guidance": 3.0, "guidance_gradient": "conditional"},
    "constants, lora": {
        "guidance": 3.0,
        "guidance_gradient": "conditional",
        "lora": {"rank": 2},
    },
}
KEPT = (PASS, PLACE, "unconditional", "version")
EXCHANGES = [using(REFERENCE), blended, moved, restored, ahead, replayed]


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("keeping", KEEPING)
@pytest.mark.slow(after=6)
def test_what_sampling_kept_is_right_whatever_comes_before_the_update(
    lab, keeping, exchange, rounding
):
    """Its gradient is that of an update that computes everything anew."""
    policy = lab.policy(steps=4, **KEEPING[keeping])
    weights = KeptWeights(policy)
    weights.keep(REFERENCE)
    lab.nudge(policy)
    policy.begin(0)
    rollouts = policy.sample(lab.rows, group_size=3, seeds=SEEDS)
    rollouts = exchange(policy, weights, lab.rows, rollouts)
    sizes = lab.calls(policy)
    trajectory = {name: rollouts.trajectory[name] for name in rollouts.trajectory.keys() - {*KEPT}}

    def gradient(each):
        policy.zero_grad()
        lab.update(policy, FlowGRPO(), each, values=VALUES)
        return lab.gradient(policy)

    kept, few = gradient(rollouts), len(sizes)
    anew = partial(gradient, replace(rollouts, trajectory=trajectory))
    assert anew().norm() > 0
    assert few < len(sizes) - few or exchange in (ahead, replayed)
    rounding.same(anew, kept)


FEW = {"groups_per_step": 2, "group_size": 4, "learning_rate": 1e-3}


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.slow
def test_a_run_with_copied_weights_learns_what_it_learns_without_graphs(
    lab, tmp_path, ahead, rounding
):
    folders = (tmp_path / f"run {number}" for number in count())

    def norms(kept):
        folder = next(folders)
        torch.manual_seed(0)
        groupwise.train(
            policy=FlowPolicy(lab.settings(steps=4, evaluation_steps=2, keep_graph=kept)),
            algorithm={"name": "flow_grpo", "beta": 0.1, "importance": "token"},
            prompts=[{"prompt": f"{letter} cat"} for letter in "abcdefgh"],
            rewards=[lab.redness],
            train={"steps": 3, "ahead": ahead, "ema": 0.5, **FEW},
            evaluation={"prompts": 0},
            output=str(folder),
            quiet=True,
        )
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return [line["grad_norm"] for line in lines if line.get("grad_norm")]

    own = norms(kept=True)
    assert len(own) == 3
    rounding.same(lambda: norms(kept=False), own, digits=6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": {"kind": "random", "size": 2}}, r"set window: \{kind: all\}"),
        ({"shared_noise": True}, "with shared_noise"),
        ({"precision": "fp16"}, "set precision: bf16"),
        ({"guidance": 3, "guidance_gradient": "conditional"}, "remove guidance_gradient"),
    ],
)
def test_settings_with_which_no_graph_can_be_kept_are_refused(lab, settings, message):
    with pytest.raises(ValidationError, match=message):
        lab.settings(keep_graph=True, **settings)
