"""Weights that are exchanged while an engine draws: each decision is that of its own weights."""

import copy
import threading
from dataclasses import replace

import pytest
import torch

from groupwise import Sampler
from groupwise.kit.errors import UserError
from groupwise.rollouts import Turn

SETTINGS = {"steps": 8, "groups_per_step": 2, "group_size": 4, "learning_rate": 0.3}
PATIENCE = 2.0
"""Seconds that a draw waits for other weights; in the last steps there are none."""


class InFlight(Sampler):
    """Draws half of the decisions of each completion, and the others when it has newer weights.

    What was begun before the first update is drawn at once. copies: the policy by version.
    """

    seeded, follows_in_flight, concurrency = False, True, 8

    def __init__(self, policy):
        self.copies, self.version, self.changed = {}, -1, threading.Condition()

    def follow(self, policy, name, version):
        with self.changed:
            self.copies[version] = copy.deepcopy(policy)
            self.version = version
            self.changed.notify_all()

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        first = second = self.version
        if purpose == "train" and first > 0:
            with self.changed:
                self.changed.wait_for(lambda: self.version > first, PATIENCE)
                second = self.version
        return self.drawn(prompts, group_size, seeds, first, second)

    def drawn(self, prompts, group_size, seeds, first, second):
        half = self.copies[first].max_decisions // 2
        joint = copy.deepcopy(self.copies[first])
        joint.table.data[:, half:] = self.copies[second].table.data[:, half:]
        rollouts = joint.sample(prompts, group_size=group_size, seeds=seeds)
        turns = []
        for length in rollouts.lengths.tolist():
            spans = [(first, min(half, length)), (second, max(0, length - half))]
            turns.append([Turn(length, spans=[span for span in spans if span[1]])])
        versions = torch.full((len(rollouts),), first)
        return replace(rollouts, versions=versions, turns=turns)


@pytest.fixture
def flowing(lab):
    """flowing(**settings) -> a trainer whose engine follows in flight, and the batches that it
    learns from, each with its step."""

    def build(engine=InFlight, **settings):
        policy = lab.Tabular()
        trainer = lab.trainer(policy, sampler=engine(policy), **{**SETTINGS, **settings})
        learned, learn = [], trainer.learner.learn

        def learning(rollouts, step_scores, step, *args, **options):
            learned.append((step, lab.gather(rollouts)))
            return learn(rollouts, step_scores, step, *args, **options)

        trainer.learner.learn = learning
        return trainer, learned

    return build


@pytest.mark.parametrize("ahead", [1, 2])
def test_log_probs_of_each_span_are_those_of_its_weights(lab, flowing, ahead):
    trainer, learned = flowing(ahead=ahead)
    metrics = []
    assert lab.fit(trainer, lambda _, own: metrics.append(own))
    copies = trainer.experience.sampler.samplings["policy"].sampler.copies
    assert [*copies] == [*range(len(copies))]
    assert len(copies) >= SETTINGS["steps"] - ahead  # later ones only if something is in flight
    several = 0
    for step, batch in learned:
        of_version = {v: own(batch).log_probs.detach() for v, own in copies.items()}
        for row, (turn,) in enumerate(batch.turns):
            start = 0
            for version, count in turn.spans:
                part = slice(start, start + count)
                drawn = batch.sampler_log_probs[row, part]
                assert torch.equal(drawn, of_version[version][row, part])
                assert step - ahead <= version <= step
                start += count
            assert start == int(batch.lengths[row])
            assert batch.versions[row] == turn.spans[0][0]
            several += len(turn.spans) > 1
    assert several
    for own in metrics:  # a decision is no older than the group that it is in
        assert own["staleness/decisions"] <= own["staleness/mean"]
    assert any(own["staleness/decisions"] < own["staleness/mean"] for own in metrics)


def test_an_evaluation_does_not_wait_for_what_is_being_drawn(lab, flowing):
    trainer, _ = flowing(ahead=2, evaluate_every=2)
    ledger, idle = trainer.experience.ledger, []
    assert lab.fit(trainer, *(lambda *_: None,) * 2, lambda *_: idle.append(ledger.is_idle))
    assert idle[0] is False
    assert trainer.step == SETTINGS["steps"]


def test_other_weights_than_those_that_draw_are_awaited(lab, flowing):
    """As the average of the weights, which is what is evaluated."""
    trainer, _ = flowing(ahead=2, ema=0.9, evaluate_every=2)
    ledger, idle = trainer.experience.ledger, []
    assert lab.fit(trainer, *(lambda *_: None,) * 2, lambda *_: idle.append(ledger.is_idle))
    assert idle == [True] * 3


@pytest.mark.parametrize("of", [-1, 1])
def test_weights_before_the_draw_or_after_the_present_ones_are_refused(lab, flowing, of):
    class Wrong(InFlight):
        def drawn(self, prompts, group_size, seeds, first, second):
            rollouts = super().drawn(prompts, group_size, seeds, first, second)
            odd = first - 1 if of < 0 else second + 1
            return replace(rollouts, versions=torch.full((len(rollouts),), odd))

    trainer, _ = flowing(Wrong, ahead=1)
    with pytest.raises(UserError, match=r"Wrong sampled with the weights of step -?\d, expected"):
        lab.fit(trainer)
