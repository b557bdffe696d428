"""Async and isolated rewards are computed while the next batch is sampled.

The tests need no clock: sampling goes on only after the reward of the previous batch has begun,
and that reward returns only after the sampling has ended. Without overlap both would wait forever.
"""

import asyncio
import math
import os
import signal
import sys
import textwrap
import threading
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from tests import repeated
from tests.core.engine import Engine

from groupwise import train
from groupwise.algorithms.grpo import GRPO
from groupwise.rewards import Reward, RewardError, Scores, seconds_left
from groupwise.scoring import event_loop
from groupwise.scoring.scorer import Scorer
from groupwise.storage.checkpoint import Checkpoints

TIMEOUT = 20.0
"""Seconds after which a test stops waiting and fails."""


class Lockstep:
    """Batches, numbered from 1, and their rewards, which wait for each other.

    overlapping: numbers n for which reward n and the sampling of batch n + 1 must overlap.
    """

    def __init__(self, overlapping):
        self.overlapping = overlapping
        self.begun, self.sampled = defaultdict(threading.Event), defaultdict(threading.Event)
        self.batches, self.calls = 0, []

    def sample(self):
        self.batches += 1
        previous = self.batches - 1
        if previous in self.overlapping:
            assert self.begun[previous].wait(TIMEOUT), f"reward {previous} has not begun"
        self.sampled[self.batches].set()

    async def reward(self, completions, trainer_state, **_):
        self.calls.append((len(completions), trainer_state.global_step))
        number = len(self.calls)
        self.begun[number].set()
        deadline = time.monotonic() + TIMEOUT
        while number in self.overlapping and not self.sampled[number + 1].is_set():
            assert time.monotonic() < deadline, f"batch {number + 1} is not sampled meanwhile"
            await asyncio.sleep(0.001)
        return self.values(completions)

    def values(self, completions):
        return [text.count("1") - 0.25 * len(text) for text in completions]

    def policy(self, lab):
        lockstep = self

        class Waiting(lab.Tabular):
            def sample(self, *args, **options):
                rollouts = super().sample(*args, **options)
                lockstep.sample()
                return rollouts

        return Waiting()


# ---- what overlaps


def test_batches_of_a_step_overlap(lab):
    steps = Lockstep({1, 2})
    trainer = lab.trainer(
        steps.policy(lab), reward=steps.reward, sample_batch=5, group_size=2, groups_per_step=5
    )
    lab.step(trainer)
    assert steps.calls == [(4, 0), (4, 0), (2, 0)]  # whole groups


def test_batches_of_replaced_groups_overlap(lab):
    class Dead(Lockstep):
        def values(self, completions):
            return [0.0] * len(completions)

    steps = Dead({1, 3})
    algorithm = GRPO(GRPO.Config(refill=True))
    settings = {"sample_batch": 4, "group_size": 2, "max_refills": 1}
    metrics = lab.step(lab.trainer(steps.policy(lab), algorithm, steps.reward, **settings))
    assert metrics["refilled_groups"] == 4
    assert steps.calls == [(4, 0)] * 4


@pytest.mark.parametrize("by_engine", [False, True])
def test_steps_overlap_with_ahead(lab, by_engine):
    steps = Lockstep({1, 2})  # nothing is sampled after the third
    policy = steps.policy(lab)
    sampler = Engine(policy) if by_engine else None
    trainer = lab.trainer(
        policy, reward=steps.reward, sampler=sampler, ahead=1, steps=3, held_out=0.0
    )
    assert lab.fit(trainer)
    # Rewards see the state when the groups were drawn.
    assert steps.calls == [(16, 0), (16, 0), (16, 1)]


def test_batches_of_an_evaluation_overlap_also_greedy_ones(lab):
    steps = Lockstep({1, 2, 3, 4})
    settings = {"evaluation": {"prompts": 3, "samples": 2}, "held_out": 0.8}
    trainer = lab.trainer(steps.policy(lab), reward=steps.reward, sample_batch=2, **settings)
    evaluation = trainer.evaluate()
    assert steps.calls == [(2, 0), (2, 0), (2, 0), (2, 0), (1, 0)]
    assert [sample["greedy"] for sample in evaluation.samples] == [False] * 6 + [True] * 3
    plain = lab.trainer(**settings).evaluate()
    assert evaluation.metrics == plain.metrics
    assert evaluation.samples == plain.samples


# ---- isolated rewards

MODULE = """
    import time
    from pathlib import Path

    calls = 0

    def meets(completions):
        global calls
        calls += 1
        Path(f"begun_{calls}").touch()
        while calls != 3 and not Path(f"sampled_{calls + 1}").exists():
            time.sleep(0.01)
        return [float(calls)] * len(completions)
"""


@pytest.fixture
def scorer(tmp_path, monkeypatch):
    (tmp_path / "meeting_rewards.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import meeting_rewards

    reward = Reward(name="meets", function=meeting_rewards.meets, isolate=True, deadline=TIMEOUT)
    scorer = Scorer([reward])
    scorer.load()
    yield scorer
    scorer.close()
    del sys.modules["meeting_rewards"]


def wait_for(path):
    deadline = time.monotonic() + TIMEOUT
    while not Path(path).exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)


def test_calls_of_an_isolated_reward_overlap_with_sampling_and_end_when_it_is_closed(lab, scorer):
    class Waiting(lab.Tabular):
        batches = 0

        def sample(self, *args, **options):
            self.batches += 1
            if self.batches > 1:
                wait_for(f"begun_{self.batches - 1}")
            Path(f"sampled_{self.batches}").touch()
            return super().sample(*args, **options)

    trainer = lab.trainer(Waiting(), sample_batch=4, group_size=2, groups_per_step=5, held_out=0.0)
    trainer.experience.scorer = scorer
    scored = trainer.experience.next(trainer.state)
    assert scored.scores.total.tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 2
    # Closed while one call hangs and another one is queued: no thread or process remains.
    before, children = set(threading.enumerate()), set(psutil.Process().children())
    for _ in range(2):
        scorer.start(scored.rollouts)
    wait_for("begun_4")
    scorer.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert set(psutil.Process().children()) < children


# ---- results


def two_rewards(lab):
    """A plain reward that logs and returns None and NaN, and an async one that judges steps."""

    def plain(completions, log_metric):
        for text in completions:
            log_metric("length", len(text))
        return [
            None if text == "0" else math.nan if text[0] == "2" else 1.0 for text in completions
        ]

    async def judges(completions):
        return [[float(symbol) for symbol in text] for text in completions]

    return [Reward(name="plain", function=plain), Reward(name="judges", function=judges)]


def test_the_size_of_batches_changes_neither_weights_nor_metrics(lab):
    runs = []
    for batch in (512, 5):
        trainer = lab.trainer(sample_batch=batch, groups_per_step=7, group_size=4, held_out=0.0)
        trainer.experience.scorer = Scorer(two_rewards(lab))
        lines = [lab.step(trainer) for _ in range(2)]
        runs.append((trainer.policy.table, lines))
    (table, lines), (other_table, other_lines) = runs
    assert torch.equal(table, other_table)
    assert lines[0]["failed/plain"] > 0
    assert "plain/length" in lines[0]
    for line, other_line in zip(lines, other_lines, strict=True):
        del line["decisions_per_second"], other_line["decisions_per_second"]
        for key in line:
            if not key.startswith(("reward_time/", "memory/")):
                assert other_line[key] == pytest.approx(line[key], nan_ok=True)


def test_joined_scores_have_the_sums_of_their_batches(lab):
    scores = lab.scores_of(torch.tensor([1.0, 3.0]))
    first = replace(scores, seconds={"a": 1.0}, failure_counts={"a": 1}, metrics={"a/x": (2.0, 2)})
    second = replace(
        lab.scores_of(torch.tensor([2.0] * 6)),
        seconds={"a": 0.5},
        metrics={"a/x": (12.0, 6), "a/y": (42.0, 6)},
        extra={"z": [0] * 6},
        failures={"a": "raised"},
    )
    both = Scores.concat([first, second])
    assert both.seconds == {"a": 1.5}
    assert both.failure_counts == {"a": 1}
    assert both.metrics == {"a/x": (14.0, 8), "a/y": (42.0, 6)}
    assert both.extra == {}
    assert both.failures == {"a": "raised"}


def test_a_reward_with_steps_for_one_batch_and_numbers_for_another_is_refused(lab):
    def mixed(completions, prompts):
        has_steps = prompts[0] == "question 0"
        return [[1.0] * len(text) if has_steps else 1.0 for text in completions]

    scorer = Scorer([Reward(name="mixed", function=mixed)])
    batches = [lab.build(lab.rows()[n : n + 1], [[1, 0]]) for n in range(2)]
    with pytest.raises(RewardError, match=r"'mixed' returned lists of step rewards for some"):
        scorer.finish([scorer.start(batch) for batch in batches])


def test_the_deadline_of_a_call_begins_when_it_starts(lab, monkeypatch):
    """Not when it was queued behind another call that keeps the event loop busy."""
    monkeypatch.setattr(event_loop, "PATIENCE", 0.1)

    async def computes(completions):
        time.sleep(0.8)
        return [1.0] * len(completions)

    scorer = Scorer([Reward(name="computes", function=computes, deadline=2.0)])
    batch = lab.build(lab.rows(1), [[1, 0]])
    scores = scorer.finish([scorer.start(batch) for _ in range(3)])
    assert scores.total.tolist() == [1.0] * 3
    scorer.close()


def test_an_async_reward_knows_how_long_its_call_may_still_take(lab):
    """Its time begins when the call before it has ended, also as seen from a thread."""
    free, notes = asyncio.Semaphore(1), []

    async def checks(completions):
        waiting = seconds_left()
        async with free:  # a connection
            seconds = [await asyncio.to_thread(seconds_left), seconds_left()]
            notes.append((waiting, seconds, time.monotonic()))
            await asyncio.sleep(0.3)
            notes.append(time.monotonic())
            return [1.0] * len(completions)

    began = time.monotonic()
    scorer = Scorer([Reward(name="checks", function=checks, deadline=20.0)])
    batch = lab.build(lab.rows(1), [[1, 0]])
    assert not scorer.finish([scorer.start(batch) for _ in range(3)]).failed.any()
    ends = [began, *notes[1::2]]
    for before, (waiting, seconds, now) in zip(ends, notes[::2], strict=False):
        assert waiting == pytest.approx(20, abs=0.25)
        assert seconds == pytest.approx([20 - (now - before)] * 2, abs=0.25)
    scorer.close()


def test_the_deadline_of_a_call_begins_when_earlier_ones_of_its_reward_have_ended(lab):
    """They have its connections; a call that hangs still ends, one after the other."""
    free = asyncio.Semaphore(1)

    async def asks(completions):
        async with free:
            await asyncio.sleep(1.2)
        return [1.0] * len(completions)

    async def hangs(completions):
        await asyncio.sleep(1000)

    scorer = Scorer([Reward(name="asks", function=asks, deadline=2.0, on_error="skip")])
    batch = lab.build(lab.rows(1), [[1, 0]])
    scores = scorer.finish([scorer.start(batch) for _ in range(2)])
    assert scores.total.tolist() == [1.0] * 2
    late = Scorer([replace(scorer.rewards[0], function=hangs, deadline=0.2)])
    assert late.finish([late.start(batch) for _ in range(3)]).failed.all()
    scorer.close()
    late.close()


# ---- failures while a step is sampled


def test_pending_calls_are_cancelled_when_the_scorer_is_closed(lab):
    begun, ended = threading.Event(), threading.Event()

    async def hangs(completions):
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    scorer = Scorer([Reward(name="hangs", function=hangs)])
    scorer.start(lab.build(lab.rows(1), [[1, 0]]))
    assert begun.wait(TIMEOUT)
    scorer.close()
    assert ended.wait(TIMEOUT)


def run(lab, folder, *, reward, policy=None, sampler=None, **options):
    policy = policy or lab.Tabular()
    settings = {"steps": 5, "groups_per_step": 2, "group_size": 4, "sample_batch": 4}
    return train(
        policy=policy,
        sampler=Engine(policy) if sampler else None,
        prompts=lab.rows(),
        rewards=[reward],
        train={**settings, "ahead": 1, "checkpoint_every": 2},
        evaluation={"prompts": 1, "greedy": False},
        output=folder / "run",
        quiet=True,
        **options,
    )


def steps_of(folder):
    return Checkpoints(folder / "run" / "checkpoints").last().name


def lines(folder):
    return repeated.lines(folder / "run")


class Stopping:
    """An async reward that awaits `then` in step `step` and never returns from it."""

    def __init__(self, lab, step=None, then=None):
        self.ones, self.step, self.then = lab.ones, step, then

    async def __call__(self, completions, trainer_state, **_):
        if trainer_state.global_step == self.step:
            if self.then is not None:
                await self.then()
            await asyncio.sleep(1000)
        return self.ones(completions)


def test_sampling_that_fails_while_a_reward_hangs_ends_the_run(lab, tmp_path):
    class Breaks(lab.Tabular):
        batches, failing_batch = 0, 7

        def sample(self, *args, purpose="train", **options):
            self.batches += purpose == "train"
            if self.batches == self.failing_batch:  # a batch of step 4, while step 3 is scored
                raise ConnectionError("out of memory")
            return super().sample(*args, purpose=purpose, **options)

    with pytest.raises(ConnectionError, match="out of memory"):
        run(lab, tmp_path, reward=Stopping(lab, 2), policy=Breaks())
    assert steps_of(tmp_path) == "step_2"
    Breaks.failing_batch = None
    assert run(lab, tmp_path, reward=Stopping(lab), policy=Breaks(), resume=True).steps == 5


@pytest.mark.parametrize("by_engine", [False, True])
def test_a_reward_that_fails_while_the_next_step_is_sampled_loses_no_step(lab, tmp_path, by_engine):
    async def fails():
        raise LookupError("no such answer")

    with pytest.raises(RewardError, match="raised LookupError: no such answer"):
        run(lab, tmp_path, reward=Stopping(lab, 2, fails), sampler=by_engine)
    assert steps_of(tmp_path) == "step_3"  # what was drawn in the third step is for the fourth
    resumed = run(lab, tmp_path, reward=Stopping(lab), sampler=by_engine, resume=True)
    uninterrupted = run(lab, tmp_path / "through", reward=Stopping(lab), sampler=by_engine)
    assert lines(tmp_path) == lines(tmp_path / "through")
    assert torch.equal(resumed.policy.table, uninterrupted.policy.table)


def test_a_second_signal_interrupts_the_wait_for_a_reward(lab, tmp_path):
    async def interrupted():
        for _ in range(2):
            await asyncio.sleep(0.5)  # time to sample the next step and then wait for this reward
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(lab, tmp_path, reward=Stopping(lab, 2, interrupted))
    assert steps_of(tmp_path) == "step_3"
    assert run(lab, tmp_path, reward=Stopping(lab), resume=True).steps == 5


# ---- skipped samples


def test_a_skipped_reward_that_hangs_is_named_once(lab, tmp_path, capsys):
    async def hangs(completions):
        await asyncio.sleep(1000)

    section = {"deadline": 0.05, "on_error": "skip"}
    train(
        policy=lab.Tabular(),
        prompts=lab.rows(),
        rewards=[lab.ones, {"name": hangs, "label": "slow", "weight": 0.1, **section}],
        watch=[{"name": hangs, "label": "watched", **section}],
        train={"steps": 1, "groups_per_step": 2, "group_size": 2},
        evaluation={"prompts": 1},
        output=tmp_path / "run",
    )
    warnings = [line for line in capsys.readouterr().err.splitlines() if "did not answer" in line]
    for name, line in zip(("slow", "watched"), warnings, strict=True):
        assert f"warning: reward {name!r} did not answer within 0.05 s, at the prompt" in line
