"""A stream of groups on a simulated clock: each is trained once, and a resumed run is equal."""

import heapq
import random

import pytest
import torch
from tests.core.engine import Engine
from tests.repeated import repeatable

from groupwise.algorithms.grpo import GRPO
from groupwise.experience.stored import encode
from groupwise.recording import snapshot
from groupwise.rewards import Reward
from groupwise.storage.checkpoint import Checkpoints

SETTINGS = {"steps": 10, "groups_per_step": 3, "group_size": 4, "learning_rate": 0.3}


class Simulated:
    """Draws groups when they are begun, and gives each back after a random time of its own; an
    update takes one unit of it."""

    def __init__(self, draw, seed):
        self.draw, self.seed, self.now, self.running = draw, seed, 0.0, []

    def begin(self, groups, made):
        for group in groups:
            (part,) = self.draw([group])
            takes = random.Random(f"{self.seed} {group.number}").expovariate(0.7)
            heapq.heappush(self.running, (self.now + takes, group.number, made(part)))

    def over(self, *, wait):
        if wait and self.running:
            self.now = max(self.now, self.running[0][0])
        parts = []
        while self.running and self.running[0][0] <= self.now:
            parts.append(heapq.heappop(self.running)[2])
        return parts

    def close(self):
        pass


class InFlight(Engine):
    follows_in_flight = True


class Watched:
    """A trainer on a simulated clock, with what it begins and trains.

    resumes: the folder of checkpoints, and the step of the one to go on from.
    """

    def __init__(self, lab, seed=0, *, resumes=None, engine=Engine, **options):
        policy = lab.Tabular()
        self.trainer = lab.trainer(policy, sampler=engine(policy), **{**SETTINGS, **options})
        experience = self.trainer.experience
        if resumes is not None:
            snapshot.restore(self.trainer, Checkpoints(resumes[0]).load(step=resumes[1]))
        self.flight = Simulated(lambda groups: experience.sampler.draw(groups, shared=False), seed)
        experience._flight = self.flight
        self.begun, self.trained, self.most, self.metrics = self.open, [], 0, []
        self.versions = []
        begin, learn = experience.ledger.begin, self.trainer.learner.learn

        def beginning(numbers, version):
            begin(numbers, version)
            self.begun += numbers
            self.versions += [(number, version) for number in numbers]
            self.most = max(self.most, len(experience.ledger))

        def learning(rollouts, *args, **settings):
            self.trained += dict.fromkeys(own.draw for own in rollouts)
            self.flight.now += 1.0
            return learn(rollouts, *args, **settings)

        experience.ledger.begin, self.trainer.learner.learn = beginning, learning

    def run(self, lab, folder=None, *, every=0):
        trainer = self.trainer

        def after(step, metrics):
            self.metrics.append(repeatable(metrics))
            if every and step % every == 0:
                trainer.experience.store()
                lab.save(trainer, folder, keep=100)

        assert lab.fit(trainer, after)
        return self

    @property
    def open(self):
        return [draw.number for draw in self.trainer.experience.ledger.untrained]


@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_each_draw_is_trained_once_and_at_most_so_many_are_in_flight(lab, ahead, seed):
    watched = Watched(lab, seed, ahead=ahead).run(lab)
    assert sorted(watched.trained) == watched.begun == [*range(30)]
    assert watched.open == []
    assert watched.most == (ahead + 1) * 3
    staleness = [metrics["staleness/max"] for metrics in watched.metrics]
    assert staleness[0] == 0
    assert max(staleness) >= 1
    if ahead > 1:
        assert watched.trained != sorted(watched.trained), "long ones are overtaken"


@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_no_draw_waits_for_a_straggler_where_weights_are_exchanged_in_flight(lab, ahead, seed):
    drained = Watched(lab, seed, ahead=ahead).run(lab)
    flowing = Watched(lab, seed, ahead=ahead, engine=InFlight).run(lab)
    assert sorted(flowing.trained) == flowing.begun == [*range(30)]
    assert flowing.most == (ahead + 1) * 3
    assert flowing.flight.now < drained.flight.now
    # Each step begins as many as the one before has trained.
    begun = [draw for draw, _ in flowing.versions]
    assert begun == [*range(30)]
    expected = [0] * (ahead + 1) * 3 + [step for step in range(1, 10 - ahead) for _ in range(3)]
    assert [version for _, version in flowing.versions] == expected


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.slow(after=1)
def test_flat_groups_are_given_up_once(lab, ahead):
    def half_flat(completions, prompts, **_):
        odd = [int(prompt.split()[1]) % 2 for prompt in prompts]
        return [0.5 if o else t.count("1") for t, o in zip(completions, odd, strict=True)]

    options = {"algorithm": GRPO(GRPO.Config(refill=True)), "reward": half_flat}
    watched = Watched(lab, ahead=ahead, **options).run(lab)
    assert len({*watched.trained}) == len(watched.trained) == 30
    given_up = {*watched.begun} - {*watched.trained, *watched.open}
    assert watched.trainer.experience.ledger.given_up == len(given_up) > 0
    assert sum(metrics["refilled_groups"] for metrics in watched.metrics) == len(given_up)
    assert watched.most == (ahead + 1) * 3


@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize("kind", ["plain", "async", "learns"])
@pytest.mark.slow(after=1)
def test_a_resumed_run_equals_one_that_was_not_killed(lab, tmp_path, ahead, kind):
    whole = Watched(lab, ahead=ahead, reward=[reward(lab, kind)]).run(lab, tmp_path, every=3)
    for step in (3, 6):
        measure = [reward(lab, kind)]
        resumed = Watched(lab, ahead=ahead, reward=measure, resumes=(tmp_path, step))
        assert resumed.open
        resumed.run(lab, tmp_path / f"again_{step}", every=3)
        assert resumed.metrics == whole.metrics[step:]
        assert resumed.trained == whole.trained[3 * step :]
        assert torch.equal(resumed.trainer.policy.table, whole.trainer.policy.table)


def reward(lab, kind):
    async def waits(completions, log_metric, **_):
        log_metric("count", float(len(completions)))
        return lab.ones(completions)

    class Learns:
        seen = 0

        def __call__(self, completions, **_):
            return [value * (1 + 0.1 * self.seen) for value in lab.ones(completions)]

        def refresh(self, rollouts, scores):
            self.seen += 1

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            self.seen = state["seen"]

    function = {"plain": lab.ones, "async": waits, "learns": Learns()}[kind]
    return Reward(name="ones", function=function)


def test_a_reward_that_learns_scores_in_the_step_that_trains(lab):
    learns = reward(lab, "learns")
    seen = []
    call = type(learns.function).__call__

    class Noted(type(learns.function)):
        def __call__(self, completions, trainer_state, **columns):
            seen.append((trainer_state.global_step, self.seen))
            return call(self, completions, **columns)

    Watched(lab, ahead=2, reward=[Reward(name="ones", function=Noted())]).run(lab)
    assert seen == [(step, step) for step in range(10)]


def test_incomplete_groups_are_drawn_anew_and_each_is_trained_once(lab, tmp_path):
    """As with an engine that is not seeded, which a checkpoint does not wait for."""
    killed = Watched(lab, ahead=2)
    killed.trainer.experience.sampler.samplings["policy"].sampler.seeded = False
    killed.run(lab, tmp_path, every=1)
    anew = 0
    for step in (2, 5, 8):
        resumed = Watched(lab, ahead=2, resumes=(tmp_path, step))
        anew += len(resumed.trainer.experience._anew)
        resumed.run(lab)
        assert sorted([*killed.trained[: 3 * step], *resumed.trained]) == [*range(30)]
    assert anew > 0


def test_what_cannot_be_stored_is_drawn_anew(lab):
    trainer = Watched(lab, ahead=1).trainer
    step = trainer.experience.next(trainer.state)
    group = step.groups[0]
    encode([group], None, ["policy"])
    next(group.judged).rollout.facts = {"picture": object()}
    with pytest.raises(ValueError, match="object cannot be stored"):
        encode([group], None, ["policy"])


def test_a_run_resumed_without_ahead_draws_all_anew(lab, tmp_path):
    Watched(lab, ahead=2).run(lab, tmp_path, every=4)
    resumed = Watched(lab, ahead=0, resumes=(tmp_path, 4)).run(lab)
    assert len(resumed.trained) == 18
    assert all("staleness/max" not in metrics for metrics in resumed.metrics)
