"""The record of a row: which forms a row has, and what the record keeps of it."""

import dataclasses
import gc
import importlib
import pkgutil
import weakref

import pytest
import torch

import groupwise
from groupwise.environment import Environment
from groupwise.environments.chain import Chain
from groupwise.record.gather import gather, settle
from groupwise.testing import play_episodes

COLUMNS = {"row", "prompts", "completion", "completions", "rollout", "rollouts", "values"}
"""Fields in which a class would hold a row, a completion or its rewards."""
FORMS = {
    "groupwise.record.group.Group": "a prompt and its episodes",
    "groupwise.record.call.Call": "a completion of an episode: what is asked, and the reply",
    "groupwise.record.rollout.Rollout": "a call or several in a context, what is learned of it",
    "groupwise.rollouts.Rollouts": "what a sampler draws, and a batch that is gathered",
    "groupwise.rewards.scores.Scores": "the rewards of a batch",
}
OTHERS = {
    "groupwise.learning.share.Share": "the Rollouts of a learner, where their passes are made",
    "groupwise.learning.batch.Update": "some rows of them, for one optimizer step",
    "groupwise.episodes.spreading.Wanted": "what a process asks another one to sample of a call",
    "groupwise.environment.Reply": "what an environment gets of a call",
    "groupwise.run.reopening.SampledReply": "what a command shows of a call",
    "groupwise.experience.replay.KeptCompletion": "of an earlier step, in a checkpoint",
    "groupwise.algorithms.credit.table.Table": "the turns of Rollouts as tensors",
    "groupwise.kit.memory.Workload": "numbers of prompts and completions",
    "groupwise.building.parts.Parts": "the source of prompts",
    "groupwise.evaluator.alarm.Best": "the values of an evaluation",
    "groupwise.scoring.gold.Gold": "what a reward pays for right answers, before a run",
    "groupwise.scoring.audit._Case": "an answer that a reward is tried with, before a run",
}


def test_a_row_has_no_other_forms():
    held = set()
    for module in pkgutil.walk_packages(groupwise.__path__, "groupwise."):
        if module.name.startswith(("groupwise.__main__", "groupwise.testing")):
            continue
        for name, each in vars(importlib.import_module(module.name)).items():
            if not isinstance(each, type) or each.__module__ != module.name:
                continue
            fields = getattr(each, "_fields", None) or [
                field.name for field in getattr(each, "__dataclass_fields__", {}).values()
            ]
            if COLUMNS & {*fields}:
                held.add(f"{module.name}.{name}")
    assert held == FORMS.keys() | OTHERS.keys()


class Twice(Environment):
    async def play(self, row, players):
        (player,) = players.values()
        await player(row)
        await player(row)


@pytest.fixture
def episodes(lab):
    policy = lab.Tabular(prompts=8)
    return play_episodes(Twice(), {"policy": policy}, lab.rows(8)[:3], size=2, batch=2, seed=3)


def test_a_batch_is_gathered_of_calls_in_any_order(episodes):
    rollouts = episodes.rollouts_of("policy")
    whole, backwards = gather(rollouts), gather(rollouts[::-1])
    order = [*range(len(rollouts))][::-1]
    again = whole.select(order)
    assert backwards.completions == again.completions == [own.completion for own in rollouts[::-1]]
    assert torch.equal(backwards.groups, again.groups)
    width = again.mask.shape[1]
    assert torch.equal(backwards.mask[:, :width], again.mask)
    for name, column in again.trajectory.items():
        own = backwards.trajectory[name]
        same = own[:, :width] if isinstance(own, torch.Tensor) and own.ndim > 1 else own
        if isinstance(column, torch.Tensor):
            assert torch.equal(same, column)


def test_what_was_drawn_is_freed_once_it_is_gathered(episodes):
    rollouts = episodes.rollouts_of("policy")
    assert len({id(own.batch) for own in rollouts}) > 1
    whole = gather(rollouts)
    settle(rollouts, whole)
    assert {id(own.batch) for own in rollouts} == {id(whole)}
    assert gather(rollouts[2:4]).completions == whole.completions[2:4]


def test_what_was_drawn_is_written_on_the_rollout_of_its_call(episodes):
    for own in episodes.rollouts_of("policy"):
        assert own.length == len(own.completion)
        assert [call.rollout for call in own.calls] == [own]
        assert dataclasses.replace(own.episode.group).number == own.comparison.draw


class EachIsRead(Environment):
    def judged(self, labels):
        return ["critic"]

    async def play(self, row, players):
        drafts = await players["writer"].group(row)
        return [(await players["critic"](draft), {}) for draft in drafts]


@pytest.mark.parametrize(
    ("environment", "labels", "middle", "expected"),
    [
        (Chain(), ("one", "middle", "last"), "middle", [0.5, 2.5, 4.5, 6.5]),
        (EachIsRead(), ("writer", "critic"), "writer", [0.0, 1.0, 2.0, 3.0]),
    ],
)
def test_a_candidate_has_the_reward_of_what_its_reply_became(
    lab, environment, labels, middle, expected
):
    policies = {label: lab.Tabular(prompts=8, seed=n) for n, label in enumerate(labels)}
    episodes = play_episodes(environment, policies, lab.rows(8)[:1], size=2, seed=3)
    scores = lab.scores_of(torch.arange(float(len(episodes.judged_calls))))
    assert lab.score(episodes, scores)[middle].total.tolist() == expected


def test_a_run_holds_what_was_drawn_no_longer_than_a_step(lab):
    """Also if Python looks for no garbage: calls and episodes know each other."""
    trainer = lab.trainer(steps=4, sample_batch=4, evaluate_every=1)
    following, drawn = trainer.experience.next, []

    def noted(state, **options):
        assert not [own for own in drawn if own() is not None]
        step = following(state, **options)
        drawn[:] = [weakref.ref(own.batch) for own in step.rollouts_of("policy")]
        return step

    trainer.experience.next = noted
    gc.disable()
    try:
        assert lab.fit(trainer)
    finally:
        gc.enable()
    assert drawn
