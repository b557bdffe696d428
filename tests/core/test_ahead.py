"""Sampling ahead: older weights, the same prompts and seeds, exact resuming."""

import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from tests.core.engine import Engine
from tests.repeated import lines

from groupwise import Algorithm, train
from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError
from groupwise.storage.checkpoint import Checkpoints


class Recording:
    """Records prompts, seeds and weights of every call that samples for training."""

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        if purpose == "train":
            table = self.table.detach().clone()
            self.draws.append(([row["id"] for row in prompts], list(seeds), table))
        return super().sample(prompts, group_size=group_size, seeds=seeds, purpose=purpose)


@pytest.fixture
def policy_class(lab):
    class RecordingPolicy(Recording, lab.Tabular):
        def __init__(self, **settings):
            super().__init__(**settings)
            self.draws = []

    return RecordingPolicy


def draws_of(trainer):
    sampler = trainer.experience.sampler.samplings["policy"].sampler
    return getattr(sampler, "copy", sampler).draws


@pytest.mark.parametrize("by_engine", [False, True])
def test_weights_are_one_step_older_but_prompts_and_seeds_the_same(lab, policy_class, by_engine):
    settings = {"steps": 6, "learning_rate": 0.3, "evaluate_every": 3}
    plain, policy = lab.trainer(policy_class(), **settings), policy_class()
    sampler = Engine(policy) if by_engine else None
    ahead = lab.trainer(policy, ahead=1, sampler=sampler, **settings)
    tables = [policy.table.detach().clone()]
    versions = []
    learn = ahead.learner.learn

    def recording_learn(rollouts, *args, **options):
        versions.append(set(lab.gather(rollouts).versions.tolist()))
        return learn(rollouts, *args, **options)

    ahead.learner.learn = recording_learn
    assert lab.fit(plain)
    assert lab.fit(ahead, lambda *_: tables.append(policy.table.detach().clone()))
    assert [draw[:2] for draw in draws_of(ahead)] == [draw[:2] for draw in draws_of(plain)]
    assert versions == [{0}, {0}, {1}, {2}, {3}, {4}]  # also across the evaluation after step 3
    for (_, _, table), step in zip(draws_of(ahead), [0, 0, 1, 2, 3, 4], strict=True):
        assert torch.equal(table, tables[step])


def test_samples_of_older_weights_have_importance_weights(lab, policy_class):
    every_prompt = {"source": lab.rows(4), "held_out": 0.0}  # 4 in each step
    trainer = lab.trainer(policy_class(), ahead=1, steps=3, learning_rate=0.5, **every_prompt)
    steps = []
    lab.fit(trainer, lambda _, metrics: steps.append(metrics))
    assert "importance" not in steps[0]
    for metrics in steps[1:]:
        assert metrics["stale/max"] > 0.01
        assert "mismatch/max" not in metrics  # not measured within one version
        assert metrics["importance"] != 1.0
        assert metrics["clip_fraction"] == 0.0


def test_by_default_the_clip_range_is_around_the_older_weights(lab, tmp_path):
    run(lab, tmp_path / "run", by_engine=False)
    steps = [line for line in lines(tmp_path / "run") if "loss" in line]
    assert any(step["clip_fraction"] > 0 for step in steps)
    assert all("importance" not in step for step in steps)
    run(lab, tmp_path / "weighted", by_engine=False, importance="token")
    steps = [line for line in lines(tmp_path / "weighted") if "loss" in line]
    assert all(step["clip_fraction"] == 0 for step in steps)
    assert any("importance" in step for step in steps)


def test_without_ahead_there_are_no_importance_weights(lab, policy_class):
    assert "importance" not in lab.step(lab.trainer(policy_class()))


def test_replacements_of_groups_are_drawn_with_the_latest_weights(lab, policy_class):
    def half_dead(completions, prompts, **_):
        return [
            0.5 if int(p.split()[1]) % 2 else t.count("1") + 0.01 * len(t)
            for t, p in zip(completions, prompts, strict=True)
        ]

    algorithm = GRPO(GRPO.Config(refill=True))
    settings = {"reward": half_dead, "steps": 3, "held_out": 0.0}
    ahead = lab.trainer(policy_class(), algorithm, ahead=1, **settings)
    versions = []
    learn = ahead.learner.learn
    ahead.learner.learn = lambda rollouts, *args, **options: (
        versions.append(sorted(set(lab.gather(rollouts).versions.tolist())))
        or learn(rollouts, *args, **options)
    )
    assert lab.fit(ahead)
    assert versions[0] == [0]
    assert versions[1] == [0, 1]


def test_training_ahead_raises_the_reward(lab, policy_class):
    settings = {"steps": 40, "group_size": 8, "held_out": 0.0, "learning_rate": 0.1}
    trainer, rewards = lab.trainer(policy_class(), ahead=1, **settings), []
    lab.fit(trainer, lambda _, metrics: rewards.append(metrics["reward"]))
    assert rewards[-1] > rewards[0] + 0.5


# ---- killed and resumed


class Killed(KeyboardInterrupt):
    """Ends a run from within a reward, where any other exception is a failed call."""


def run(lab, folder, *, by_engine, kill_at=None, resume=False, importance=None, **options):
    policy, calls = lab.Tabular(), 0

    def reward(completions, trainer_state, **_):
        nonlocal calls
        calls += 1
        if kill_at is not None and trainer_state.global_step == kill_at and calls > 1:
            raise Killed
        return lab.ones(completions)

    settings = {"steps": 7, "groups_per_step": 2, "group_size": 4, "learning_rate": 0.3}
    return train(
        policy=policy,
        sampler=(by_engine if isinstance(by_engine, type) else Engine)(policy)
        if by_engine
        else None,
        prompts=lab.rows(),
        rewards=[reward],
        train={**settings, "ahead": 1, "checkpoint_every": 3, **options},
        evaluation={"prompts": 1},
        algorithm="grpo" if importance is None else {"name": "grpo", "importance": importance},
        output=folder,
        resume=resume,
        quiet=True,
        **{"prompts.held_out": 0.3},
    )


@pytest.mark.parametrize("by_engine", [False, True])
def test_a_run_killed_while_sampling_ahead_resumes_exactly(lab, tmp_path, by_engine, monkeypatch):
    uninterrupted = run(lab, tmp_path / "through", by_engine=by_engine)
    # A killed process cannot save, so the last checkpoint is that of step 3.
    with monkeypatch.context() as patch:
        patch.setattr("groupwise.recording.saver.Saver.rescue", lambda *_: None)
        with pytest.raises(Killed):
            run(lab, tmp_path / "killed", by_engine=by_engine, kill_at=5)
    resumed = run(lab, tmp_path / "killed", by_engine=by_engine, resume=True)
    assert lines(tmp_path / "killed") == lines(tmp_path / "through")
    assert torch.equal(resumed.policy.table, uninterrupted.policy.table)


# ---- limits, failures and signals while a step is drawn ahead


def by_engine(lab, engine_class=Engine, **settings):
    policy = lab.Tabular()
    return lab.trainer(policy, sampler=engine_class(policy), ahead=1, **settings)


class Strict(Engine):
    """Fails if it must follow while it samples; sampling is slow enough that this could happen."""

    drawing = False

    def follow(self, policy, name, version):
        assert not self.drawing, "follow was called during sampling"
        super().follow(policy, name, version)

    def sample(self, *args, **options):
        self.drawing = True
        time.sleep(0.05)
        try:
            return super().sample(*args, **options)
        finally:
            self.drawing = False


def test_an_evaluation_waits_for_what_is_being_drawn_and_drops_nothing(lab):
    trainer = by_engine(lab, Strict, steps=50, minutes=1.0)

    def reach_limit(step, _):
        trainer.started -= 61.0 * (step == 2)

    assert lab.fit(trainer, reach_limit)
    assert trainer.step == 2
    trainer.evaluate()
    assert trainer.experience.prompts.drawn == 12  # including the 4 prompts of a third step
    ledger = trainer.experience.ledger
    assert ledger.is_idle
    assert [draw.number for draw in ledger.untrained] == [8, 9, 10, 11]


class Breaks(Engine):
    """Its third call fails, while the second step is trained."""

    calls = 0

    def sample(self, *args, purpose="train", **options):
        self.calls += purpose == "train"
        if self.calls == 3:
            raise ConnectionError("the engine is gone")
        return super().sample(*args, purpose=purpose, **options)


def test_a_failure_while_sampling_ahead_loses_no_finished_step(lab, tmp_path):
    with pytest.raises(ConnectionError, match="the engine is gone"):
        run(lab, tmp_path / "run", by_engine=Breaks)
    assert Checkpoints(tmp_path / "run" / "checkpoints").last().name == "step_2"
    assert [line["step"] for line in lines(tmp_path / "run") if "loss" in line] == [1, 2]
    result = run(lab, tmp_path / "run", by_engine=Engine, resume=True)
    assert result.steps == 7
    assert [line["step"] for line in lines(tmp_path / "run") if "loss" in line] == [*range(1, 8)]


@pytest.mark.parametrize("times", [1, 2])
def test_signals_while_sampling_ahead_save_a_complete_step(lab, tmp_path, monkeypatch, times):
    """The first lets the step end; the second interrupts at once."""
    handled, install = [], signal.signal

    def recording(number, handler):
        def record(*arguments):
            handled.append(arguments)
            handler(*arguments)

        return install(number, record if callable(handler) else handler)

    monkeypatch.setattr(signal, "signal", recording)

    class Signalled(Engine):
        def sample(self, *args, **options):
            if self.version == 2:  # step 4 is drawn while step 3 is trained
                os.kill(os.getpid(), signal.SIGINT)
                while not handled:  # an earlier second signal would be merged with the first
                    time.sleep(0.01)
                if times == 2:
                    os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
            return super().sample(*args, **options)

    section = {"checkpoint_every": 0}
    try:
        result = run(lab, tmp_path / "run", by_engine=Signalled, **section)
        assert result.interrupted
        assert times == 1
    except KeyboardInterrupt:
        assert times == 2
    steps = [line["step"] for line in lines(tmp_path / "run") if "loss" in line]
    assert steps in ([1, 2], [1, 2, 3], [1, 2, 3, 4])  # depends on when the signal arrives
    if times == 2 and not [*(tmp_path / "run" / "checkpoints").glob("step_*")]:
        return  # it arrived between an update and the end of its step: no step was whole
    assert run(lab, tmp_path / "run", by_engine=Engine, resume=True, **section).steps == 7
    assert [line["step"] for line in lines(tmp_path / "run") if "loss" in line] == [*range(1, 8)]


def test_skipped_prompts_are_counted_in_the_step_that_draws_them(lab):
    counts = []
    for ahead in (0, 1):
        trainer = lab.trainer(lab.Tabular(), ahead=ahead, steps=6, held_out=0.0)
        trainer.experience.prompts.skips = lambda row: row["id"] == 3
        counts.append([])
        lab.fit(trainer, lambda _, metrics: counts[-1].append(metrics.get("skipped_prompts", 0)))
    # Ahead, the first step draws those of the second, too.
    assert counts[1] == [sum(counts[0][:2]), *counts[0][2:], 0]
    assert sum(counts[0]) == trainer.experience.prompts.skipped > 0


# ---- refused


def test_an_algorithm_without_importance_weights_is_refused(lab, tmp_path):
    section = {"algorithm": {"name": "grpo", "importance": "none"}}
    with pytest.raises(UserError, match=r"at 0, or set algorithm\.importance: token$"):
        train(
            policy=lab.Tabular(),
            prompts=lab.rows(),
            rewards=[lab.ones],
            train={"ahead": 1},
            output=tmp_path / "run",
            **section,
        )
    assert not Algorithm.corrects


def test_rollouts_of_older_weights_need_importance_weights_even_without_ahead(lab):
    trainer = lab.trainer(algorithm=GRPO(GRPO.Config(importance="none")))
    scored = trainer.experience.next(trainer.state)
    trainer.step = 3
    with pytest.raises(UserError, match="rollouts of older weights need an algorithm with im"):
        trainer.learn(scored)


def test_the_sampling_thread_uses_the_gpu_of_its_process(lab, monkeypatch):
    devices = []
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    for device in ("cpu", "cuda:3"):
        policy = lab.Tabular()
        trainer = lab.trainer(policy, sampler=Engine(policy), ahead=1)
        state = trainer.state
        accelerator = SimpleNamespace(device=torch.device(device), num_processes=1)
        monkeypatch.setattr(trainer.experience, "accelerator", accelerator)
        trainer.experience.next(state)
        trainer.experience.close()
    assert devices == [torch.device("cuda:3")]
