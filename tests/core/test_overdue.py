"""Calls of a sampler that never return are named, and their groups given up by the deadline."""

import threading
from contextlib import contextmanager

import pytest
from tests.core import test_concurrent_draws
from tests.core.engine import Engine
from tests.core.test_concurrent_draws import Answered, metrics_of, train

from groupwise.episodes.timed_calls import OverdueError, TimedCalls
from groupwise.kit.errors import UserError

SOON = 1.0
"""Seconds, the deadline of a call; those that do not hang take a few milliseconds, so that on a
busy machine another one may be late, too."""


@pytest.fixture
def released():
    """An event for calls that hang, which ends them after the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def hanging(released):
    """hanging(concurrency) -> an engine whose fifth call of training hangs."""

    def build(concurrency):
        class Hangs(Engine):
            calls, lock = 0, threading.Lock()

            def sample(self, prompts, *, purpose="train", **options):
                with self.lock:
                    Hangs.calls += purpose == "train"
                    hangs = Hangs.calls == 5 and purpose == "train"
                if hangs:
                    released.wait()
                return super().sample(prompts, purpose=purpose, **options)

        Hangs.concurrency, Hangs.timeout, Hangs.seeded = concurrency, SOON, False
        return Hangs

    return build


def test_a_group_that_never_ends_is_given_up_and_named(lab, hanging, capfd):
    policy = lab.Tabular()
    settings = {"steps": 5, "groups_per_step": 3, "ahead": 1, "held_out": 0.0}
    trainer = lab.trainer(policy, sampler=hanging(4)(policy), **settings)
    metrics, trained = [], []
    learn = trainer.learner.learn
    trainer.learner.learn = lambda rollouts, *args, **options: (
        trained.extend(dict.fromkeys(own.draw for own in rollouts))
        or learn(rollouts, *args, **options)
    )
    assert lab.fit(trainer, lambda _, own: metrics.append(own))
    given_up, said = {*range(15)} - {*trained}, capfd.readouterr().err
    assert given_up
    assert len(trained) + len(given_up) == 15
    assert sum(own["failed"] for own in metrics) == 4 * len(given_up)
    for draw in given_up:
        assert (
            f"note: sampler Hangs has not returned for 1 s: 4 completions (of draw {draw}) are "
            f"given up, as failed samples"
        ) in said


def test_a_sampler_of_one_call_at_a_time_ends_the_run(lab, hanging):
    policy = lab.Tabular()
    trainer = lab.trainer(policy, sampler=hanging(1)(policy), steps=9, ahead=1)
    with pytest.raises(UserError, match=r"Hangs has not returned from its call for 1 s \(`timeou"):
        lab.fit(trainer)
    assert 0 < trainer.step < 9


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_turn_that_never_ends_costs_its_episode(lab, tmp_path, released, ahead, monkeypatch):
    class Left(test_concurrent_draws.Turns):
        timeout = SOON

        @contextmanager
        def session(self):  # which ends while the late call still runs
            self.sessions += 1
            yield
            self.sessions -= 1

        def draw(self, contexts, *, purpose="train", **options):
            later = purpose == "train" and contexts[0].drawn
            if later and first.acquire(blocking=False):
                released.wait()
            return super().draw(contexts, purpose=purpose, **options)

    monkeypatch.setattr(test_concurrent_draws, "Turns", Left)
    first = threading.Lock()
    train(lab, tmp_path, Answered(), concurrency=4, train={"ahead": ahead})
    failed = [line["failed"] for line in metrics_of(tmp_path) if "loss" in line]
    assert sum(failed) >= 1
    assert len(failed) == 2


def test_a_late_call_keeps_its_place_until_it_returns(released):
    calls = TimedCalls("sampler Engine", most=2, seconds=SOON)
    running = threading.Semaphore(0)

    def late():
        running.release()
        released.wait()

    with pytest.raises(OverdueError, match=r"sampler Engine has not returned for 1 s"):
        calls(late)
    assert calls(lambda: 3) == 3  # at the place that is left
    with pytest.raises(UserError, match=r"not returned from any of its 2 calls for 1 s"):
        calls(late)
    with pytest.raises(UserError, match="nothing can be sampled any more"):
        calls(lambda: 3)
    released.set()
    while calls._running:
        threading.Event().wait(0.01)
    assert calls(lambda: 4) == 4


def test_what_a_call_raises_is_raised_and_frees_its_place():
    calls = TimedCalls("sampler Engine", most=1, seconds=60.0)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="its own"):
            calls(fails)


def fails():
    raise TimeoutError("its own")
