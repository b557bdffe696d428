"""Rewards that compute elsewhere are at it while the next batch is sampled.

Shown by the order of what happens and not by a clock: sampling goes on only when a reward of the
batch before has begun, and that reward answers only when the sampling has ended.
"""

import asyncio
import json
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
from tests.core.engine import Engine

from groupwise import train
from groupwise.algorithms.grpo import GRPO
from groupwise.rewards import Reward, RewardError, Scores
from groupwise.scoring import event_loop
from groupwise.scoring.scorer import Scorer
from groupwise.storage.checkpoint import Checkpoints

PATIENCE = 20.0
"""Seconds after which what is waited for does not come."""


class Lockstep:
    """Batches and calls of a reward, numbered from 1, that wait for each other.

    meets: numbers of the batches whose reward and whose successor's sampling must be at it at once.
    """

    def __init__(self, meets):
        self.meets = meets
        self.begun, self.sampled = defaultdict(threading.Event), defaultdict(threading.Event)
        self.batches, self.calls = 0, []

    def sample(self):
        self.batches += 1
        before = self.batches - 1
        if before in self.meets:
            assert self.begun[before].wait(PATIENCE), f"reward {before} has not begun"
        self.sampled[self.batches].set()

    async def reward(self, completions, trainer_state, **_):
        self.calls.append((len(completions), trainer_state.global_step))
        number = len(self.calls)
        self.begun[number].set()
        until = time.monotonic() + PATIENCE
        while number in self.meets and not self.sampled[number + 1].is_set():
            assert time.monotonic() < until, f"batch {number + 1} is not sampled meanwhile"
            await asyncio.sleep(0.001)
        return self.values(completions)

    def values(self, completions):
        return [text.count("1") - 0.25 * len(text) for text in completions]

    def policy(self, lab):
        lockstep = self

        class Meeting(lab.Tabular):
            def sample(self, *rest, **more):
                rollouts = super().sample(*rest, **more)
                lockstep.sample()
                return rollouts

        return Meeting()


# ---- who is at it at once


def test_batches_of_a_step(lab):
    steps = Lockstep({1, 2})
    trainer = lab.trainer(
        steps.policy(lab), reward=steps.reward, sample_batch=5, group_size=2, groups_per_step=5
    )
    lab.step(trainer)
    assert steps.calls == [(4, 0), (4, 0), (2, 0)]  # whole groups


def test_batches_of_a_round_of_refilling(lab):
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
def test_steps_with_ahead(lab, by_engine):
    steps = Lockstep({1, 2})  # and after the third nothing is sampled
    policy = steps.policy(lab)
    sampler = Engine(policy) if by_engine else None
    trainer = lab.trainer(
        policy, reward=steps.reward, sampler=sampler, ahead=1, steps=3, held_out=0.0
    )
    assert lab.fit(trainer)
    assert steps.calls == [(16, 0), (16, 1), (16, 2)]


def test_batches_of_an_evaluation_greedy_ones_too(lab):
    steps = Lockstep({1, 2, 3, 4})
    settings = {"evaluation": {"prompts": 3, "samples": 2}, "held_out": 0.8}
    trainer = lab.trainer(steps.policy(lab), reward=steps.reward, sample_batch=2, **settings)
    evaluation = trainer.evaluate()
    assert steps.calls == [(2, 0), (2, 0), (2, 0), (2, 0), (1, 0)]
    assert [sample["greedy"] for sample in evaluation.samples] == [False] * 6 + [True] * 3
    plain = lab.trainer(**settings).evaluate()
    assert evaluation.metrics == plain.metrics
    assert evaluation.samples == plain.samples


# ---- in a process of its own

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

    reward = Reward(name="meets", function=meeting_rewards.meets, isolate=True, deadline=PATIENCE)
    scorer = Scorer([reward])
    scorer.load()
    yield scorer
    scorer.close()
    del sys.modules["meeting_rewards"]


def comes(path):
    until = time.monotonic() + PATIENCE
    while not Path(path).exists():
        assert time.monotonic() < until, f"{path} does not come"
        time.sleep(0.01)


def test_an_isolated_reward_is_called_meanwhile_batch_by_batch_until_it_is_closed(lab, scorer):
    class Meeting(lab.Tabular):
        batches = 0

        def sample(self, *rest, **more):
            self.batches += 1
            if self.batches > 1:
                comes(f"begun_{self.batches - 1}")
            Path(f"sampled_{self.batches}").touch()
            return super().sample(*rest, **more)

    trainer = lab.trainer(Meeting(), sample_batch=4, group_size=2, groups_per_step=5, held_out=0.0)
    trainer.experience.scorer = scorer
    scored = trainer.experience.next(trainer.state)
    assert scored.scores.total.tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 2
    # Closed while one call hangs and another waits for its turn: nothing is left, or started anew.
    before, children = set(threading.enumerate()), set(psutil.Process().children())
    for _ in range(2):
        scorer.start(scored.rollouts)
    comes("begun_4")
    scorer.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert set(psutil.Process().children()) < children


# ---- what it comes to


def logging(lab):
    """A plain reward and an async one that log, judge steps, and give what is no number."""

    def plain(completions, log_metric):
        for text in completions:
            log_metric("length", len(text))
        return [
            None if text == "0" else math.nan if text[0] == "2" else 1.0 for text in completions
        ]

    async def judges(completions):
        return [[float(symbol) for symbol in text] for text in completions]

    return [Reward(name="plain", function=plain), Reward(name="judges", function=judges)]


def test_batches_change_nothing_that_is_learned_or_logged(lab):
    runs = []
    for batch in (512, 5):
        trainer = lab.trainer(sample_batch=batch, groups_per_step=7, group_size=4, held_out=0.0)
        trainer.experience.scorer = Scorer(logging(lab))
        lines = [lab.step(trainer) for _ in range(2)]
        runs.append((trainer.policy.table, lines))
    (table, lines), (other, others) = runs
    assert torch.equal(table, other)
    assert lines[0]["nan_rewards/plain"] > 0
    assert "plain/length" in lines[0]
    for line, of_batches in zip(lines, others, strict=True):
        del line["decisions_per_second"], of_batches["decisions_per_second"]
        for key in line:
            if not key.startswith("reward_time/"):
                assert of_batches[key] == pytest.approx(line[key], nan_ok=True)


def test_scores_of_batches_add_up(lab):
    part = lab.scores_of(torch.tensor([1.0, 3.0]))
    first = replace(part, seconds={"a": 1.0}, undefined={"a": 1}, metrics={"a/x": 1.0})
    further = replace(
        lab.scores_of(torch.tensor([2.0] * 6)),
        seconds={"a": 0.5},
        metrics={"a/x": 2.0, "a/y": 7.0},
        extra={"z": [0] * 6},
        failures={"a": "raised"},
    )
    both = Scores.concat([first, further])
    assert both.seconds == {"a": 1.5}
    assert both.undefined == {"a": 1}
    assert both.metrics == {"a/x": 1.75, "a/y": 7.0}
    assert both.extra == {}
    assert both.failures == {"a": "raised"}


def test_steps_for_one_batch_and_numbers_for_another_stop_the_run(lab):
    def mixed(completions, prompts):
        judged = prompts[0] == "question 0"
        return [[1.0] * len(text) if judged else 1.0 for text in completions]

    scorer = Scorer([Reward(name="mixed", function=mixed)])
    batches = [lab.build(lab.rows()[n : n + 1], [[1, 0]]) for n in range(2)]
    with pytest.raises(RewardError, match=r"'mixed' returned lists of step rewards for some"):
        scorer.finish([scorer.start(batch) for batch in batches])


def test_the_deadline_of_a_call_begins_with_it(lab, monkeypatch):
    """Not with that of another that keeps the loop busy before it."""
    monkeypatch.setattr(event_loop, "PATIENCE", 0.1)

    async def computes(completions):
        time.sleep(0.4)
        return [1.0] * len(completions)

    scorer = Scorer([Reward(name="computes", function=computes, deadline=0.8)])
    batch = lab.build(lab.rows(1), [[1, 0]])
    scores = scorer.finish([scorer.start(batch) for _ in range(3)])
    assert scores.total.tolist() == [1.0] * 3
    scorer.close()


# ---- what fails meanwhile


def test_calls_that_are_given_up_are_cancelled(lab):
    begun, ended = threading.Event(), threading.Event()

    async def hangs(completions):
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    scorer = Scorer([Reward(name="hangs", function=hangs)])
    scorer.start(lab.build(lab.rows(1), [[1, 0]]))
    assert begun.wait(PATIENCE)
    scorer.close()
    assert ended.wait(PATIENCE)


def run(lab, folder, *, reward, policy=None, sampler=None, **more):
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
        **more,
    )


def steps_of(folder):
    return Checkpoints(folder / "run" / "checkpoints").last().name


def lines(folder):
    """The metrics, but for those of time."""
    rows = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if "time" not in k and "per_s" not in k} for row in rows]


class Never:
    """An async reward that answers no more after some steps, if any."""

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
        batches, worst = 0, 7

        def sample(self, *rest, purpose="train", **more):
            self.batches += purpose == "train"
            if self.batches == self.worst:  # of step 4, while step 3 is scored
                raise ConnectionError("out of memory")
            return super().sample(*rest, purpose=purpose, **more)

    with pytest.raises(ConnectionError, match="out of memory"):
        run(lab, tmp_path, reward=Never(lab, 2), policy=Breaks())
    assert steps_of(tmp_path) == "step_2"
    Breaks.worst = None
    assert run(lab, tmp_path, reward=Never(lab), policy=Breaks(), resume=True).steps == 5


@pytest.mark.parametrize("by_engine", [False, True])
def test_a_reward_that_fails_while_the_next_step_is_sampled(lab, tmp_path, by_engine):
    async def fails():
        raise LookupError("no such answer")

    with pytest.raises(RewardError, match="raised LookupError: no such answer"):
        run(lab, tmp_path, reward=Never(lab, 2, fails), sampler=by_engine)
    assert steps_of(tmp_path) == "step_2"
    resumed = run(lab, tmp_path, reward=Never(lab), sampler=by_engine, resume=True)
    through = run(lab, tmp_path / "through", reward=Never(lab), sampler=by_engine)
    assert lines(tmp_path) == lines(tmp_path / "through")
    assert torch.equal(resumed.policy.table, through.policy.table)


def test_a_second_signal_ends_the_wait_for_a_reward(lab, tmp_path):
    async def interrupted():
        for _ in range(2):
            await asyncio.sleep(0.5)  # by then the next step is sampled, and this is waited for
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(lab, tmp_path, reward=Never(lab, 2, interrupted))
    assert steps_of(tmp_path) == "step_2"
    assert run(lab, tmp_path, reward=Never(lab), resume=True).steps == 5


# ---- what is skipped is named


def test_a_skipped_reward_that_hangs_is_named_once(lab, tmp_path, capsys):
    async def hangs(completions):
        await asyncio.sleep(1000)

    section = {"deadline": 0.05, "on_error": "skip"}
    train(
        policy=lab.Tabular(),
        prompts=lab.rows(),
        rewards=[lab.ones, {"name": hangs, "label": "slow", "weight": 0.1, **section}],
        watch=[{"name": hangs, "label": "watched", **section}],
        train={"steps": 2, "groups_per_step": 2, "group_size": 2},
        evaluation={"prompts": 1},
        output=tmp_path / "run",
    )
    warned = [line for line in capsys.readouterr().err.splitlines() if "did not answer" in line]
    for name, line in zip(("slow", "watched"), warned, strict=True):
        assert f"warning: reward {name!r} did not answer within 0.05 s; samples on which it" in line
