"""A resumed run equals an uninterrupted one; a killed save leaves a complete checkpoint."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from groupwise import train
from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.saved import read_weights
from groupwise_algorithms.dapo import DAPO

OF_MACHINE = ("time/", "reward_time/", "decisions_per_second", "memory/")


class Killed(BaseException):
    pass


def without_times(metrics):
    return {k: v for k, v in metrics.items() if not k.startswith(OF_MACHINE)}


def run(lab, trainer, steps):
    return [without_times(lab.step(trainer)) for _ in range(steps)]


FORMS = {
    "grpo": GRPO,
    "kl": lambda: GRPO(GRPO.Config(beta=0.1)),
    "dapo": DAPO,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_run_resumed_after_two_steps_equals_an_uninterrupted_one(lab, form, tmp_path):
    options = {
        "steps": 4,
        "schedule": "cosine",
        "warmup_steps": 1,
        "weight_decay": 0.1,
        "updates_per_rollout": 2,
        "epochs": 2,
    }
    uninterrupted = lab.trainer(algorithm=FORMS[form](), **options)
    expected = run(lab, uninterrupted, 4)

    first = lab.trainer(algorithm=FORMS[form](), **options)
    run(lab, first, 2)
    lab.save(first, tmp_path)
    # New objects, as in a new process; the policy has its initial weights.
    second = lab.trainer(algorithm=FORMS[form](), **options)
    lab.restore(second, tmp_path)
    assert second.step == 2
    resumed_steps = run(lab, second, 2)

    assert torch.equal(second.policy.table, uninterrupted.policy.table)
    one, other = (
        t.learner.optimizer.adamw.state_dict()["state"][0] for t in (uninterrupted, second)
    )
    for name in ("step", "exp_avg", "exp_avg_sq"):
        assert torch.equal(one[name], other[name])
    assert json.dumps(resumed_steps) == json.dumps(expected[2:])


class Learning:
    """A reward that learns: the fewer completions of a length it has scored, the more it pays."""

    def __init__(self):
        self.counts = torch.zeros(10)

    def __call__(self, completions, **columns):
        return [float(1 / (1 + self.counts[len(text)])) for text in completions]

    def refresh(self, rollouts, scores):
        for text in rollouts.completions:
            self.counts[len(text)] += 1

    def state_dict(self):
        return {"counts": self.counts, "notes": ["seen", {1: 2.5}]}

    def load_state_dict(self, state):
        assert state["notes"] == ["seen", {1: 2.5}]
        self.counts = state["counts"]


def test_a_reward_that_learns_resumes_with_its_state(lab, tmp_path):
    uninterrupted = lab.trainer(reward=Learning())
    expected = run(lab, uninterrupted, 4)
    first = lab.trainer(reward=Learning())
    run(lab, first, 2)
    lab.save(first, tmp_path)
    second = lab.trainer(reward=Learning())
    lab.restore(second, tmp_path)
    assert json.dumps(run(lab, second, 2)) == json.dumps(expected[2:])
    assert torch.equal(second.policy.table, uninterrupted.policy.table)


def test_an_algorithm_resumes_with_its_state(lab, tmp_path):
    class Counting(GRPO):
        steps = 0

        def state_dict(self):
            return {"steps": self.steps}

        def load_state_dict(self, state):
            self.steps = state["steps"]

    first = lab.trainer(algorithm=Counting())
    run(lab, first, 1)
    first.algorithm.steps = 7
    lab.save(first, tmp_path)
    second = lab.trainer(algorithm=Counting())
    lab.restore(second, tmp_path)
    assert second.algorithm.steps == 7


def test_a_nested_state_is_equal_after_saving_and_loading(reloaded):
    original = {
        "tensor": torch.arange(3),
        "nested": [1, 2.5, None, "text", {"inner": torch.ones(2, 2)}],
        "tuple": (1, (2, 3)),
        "numbers": {0: {"momentum": torch.zeros(1)}, (1, 2): "a"},
    }
    assert repr(reloaded(original)) == repr(original)
    with pytest.raises(UserError, match=r"the state\.part\.a\.0 cannot be saved: .*, found set"):
        reloaded({"a": [{1, 2}]})


def test_tensors_with_similar_paths_stay_separate(reloaded):
    original = {"a": {"b.w": torch.zeros(2)}, "a.b": {"w": torch.ones(2)}}
    assert repr(reloaded(original)) == repr(original)


def test_a_state_that_cannot_be_saved_is_refused_before_the_first_step(lab, tmp_path):
    class Unsaveable(Learning):
        def state_dict(self):
            return {"seen": {1, 2}}

    policy, reward = lab.Tabular(), Unsaveable()
    with pytest.raises(UserError, match=r"reward 'Unsaveable'\.seen cannot be saved: .* found set"):
        train(policy=policy, prompts=lab.rows(), rewards=reward, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not policy.forward_sizes


def test_the_frozen_model_of_a_reward_is_not_in_checkpoints(lab, tmp_path):
    class Frozen(nn.Linear):
        def forward(self, completions, **columns):
            return [1.0] * len(completions)

    folder = lab.save(lab.trainer(reward=Frozen(2, 2)), tmp_path)
    assert json.loads((folder / "state.json").read_text())["rewards"] == {}
    assert not (folder / "state.safetensors").exists()


def test_saving_does_not_change_training(lab, tmp_path):
    saved, plain = lab.trainer(), lab.trainer()
    run(lab, saved, 1)
    lab.save(saved, tmp_path)
    run(lab, plain, 1)
    assert json.dumps(run(lab, saved, 2)) == json.dumps(run(lab, plain, 2))


def test_a_checkpoint_contains_no_pickle(lab, tmp_path):
    trainer = lab.trainer()
    run(lab, trainer, 1)
    folder = lab.save(trainer, tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert names == {"weights.safetensors", "optimizer.safetensors", "state.json", "files.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_only_the_last_checkpoints_are_kept(lab, tmp_path):
    trainer = lab.trainer(steps=20)
    for _ in range(11):
        run(lab, trainer, 1)
        lab.save(trainer, tmp_path, keep=3)
    assert {path.name for path in tmp_path.iterdir()} == {"step_9", "step_10", "step_11"}
    resumed = lab.trainer(steps=20)
    lab.restore(resumed, tmp_path)
    assert resumed.step == 11


def kill_at_call(monkeypatch, kill_at):
    """Counts operations on files and raises `Killed` before number `kill_at`."""
    calls = 0

    def counted(function):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls == kill_at:
                raise Killed
            return function(*args, **options)

        return call

    monkeypatch.setattr("groupwise.storage.tensors.save_file", counted(save_file))
    monkeypatch.setattr(shutil, "rmtree", counted(shutil.rmtree))
    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    for name in ("mkdir", "write_text", "rename", "unlink"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    return lambda: calls


@pytest.mark.parametrize("kill_at", range(1, 19))
def test_a_killed_save_leaves_a_complete_checkpoint(lab, tmp_path, monkeypatch, kill_at):
    trainer = lab.trainer(steps=9)
    run(lab, trainer, 1)
    lab.save(trainer, tmp_path)
    weights = {1: trainer.policy.table.detach().clone()}
    run(lab, trainer, 1)
    weights[2] = trainer.policy.table.detach().clone()
    with monkeypatch.context() as patch:
        calls = kill_at_call(patch, kill_at)
        try:
            lab.save(trainer, tmp_path)
        except Killed:
            assert calls() == kill_at
        else:
            assert calls() < kill_at
            assert kill_at > 16  # so every operation of a save was killed once
    resumed = lab.trainer(steps=9)
    lab.restore(resumed, tmp_path)
    assert resumed.step in (1, 2)
    assert torch.equal(resumed.policy.table, weights[resumed.step])
    # The next save works beside the remains of the killed one.
    run(lab, trainer, 1)
    lab.save(trainer, tmp_path)
    lab.restore(resumed, tmp_path)
    assert resumed.step == 3
    assert torch.equal(resumed.policy.table, trainer.policy.table)
    assert "step_3" in {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "unlisted"])
def test_an_incomplete_checkpoint_is_never_loaded(lab, tmp_path, name, damage):
    trainer = lab.trainer(steps=9)
    run(lab, trainer, 1)
    lab.save(trainer, tmp_path, keep=2)
    run(lab, trainer, 1)
    incomplete = lab.save(trainer, tmp_path, keep=2)
    if damage == "cut":
        (incomplete / name).write_bytes((incomplete / name).read_bytes()[:-1])
    elif damage == "gone":
        (incomplete / name).unlink()
    else:
        (incomplete / "files.json").unlink()
    resumed = lab.trainer(steps=9)
    lab.restore(resumed, tmp_path)
    assert resumed.step == 1
    # The step is repeated, and its checkpoint replaces the incomplete one.
    run(lab, resumed, 1)
    lab.save(resumed, tmp_path, keep=2)
    assert Checkpoints(tmp_path).last() == incomplete
    assert torch.equal(resumed.policy.table, trainer.policy.table)


def test_a_save_removes_incomplete_and_later_checkpoints_and_keeps_earlier_ones(lab, tmp_path):
    trainer = lab.trainer(steps=9)
    for _ in range(4):
        run(lab, trainer, 1)
        lab.save(trainer, tmp_path, keep=4)
    (tmp_path / "step_4" / "weights.safetensors").unlink()
    (tmp_path / "step_2" / "files.json").unlink()
    (tmp_path / "step_7.new").mkdir()
    (tmp_path / "mine").mkdir()
    trainer.step = 3  # resumed from the checkpoint before the incomplete one
    lab.save(trainer, tmp_path, keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {"step_1", "step_3", "mine"}
    lab.save(trainer, tmp_path, keep=1)
    assert Checkpoints(tmp_path).last().name == "step_3"


def test_a_folder_without_a_complete_checkpoint_is_named(lab, tmp_path):
    trainer = lab.trainer()
    with pytest.raises(UserError, match=r"no checkpoint in .*nowhere$"):
        lab.restore(trainer, tmp_path / "nowhere")
    (tmp_path / "step_3").mkdir()
    with pytest.raises(UserError, match=r"no checkpoint in .*: all of them are incomplete"):
        lab.restore(trainer, tmp_path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            nn.ParameterDict({"table": nn.Parameter(torch.zeros(1))}),
            r"'table' has shape \[8, 5, 4, 3\]",
        ),
        (
            nn.ParameterDict({"other": nn.Parameter(torch.zeros(1))}),
            "only one of the two has 'other'",
        ),
        (nn.Linear(2, 2), "only one of the two has 'bias'"),
        # Broadcasting would copy a [1] into a [3].
        (
            nn.ParameterDict({"table": nn.Parameter(torch.zeros(8, 5, 4, 1))}),
            r"'table' has shape \[8, 5",
        ),
    ],
)
def test_the_error_for_a_checkpoint_of_another_model_names_the_parameter(
    lab, tmp_path, other, message
):
    trainer = lab.trainer()
    run(lab, trainer, 1)
    lab.save(trainer, tmp_path)
    before = [p.detach().clone() for p in other.parameters()]
    with pytest.raises(UserError, match=f"(?s)is of another model.*{message}"):
        read_weights(other, Checkpoints(tmp_path).load())
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


def test_frozen_parameters_are_not_saved(lab, tmp_path):
    policy = lab.Tabular()
    policy.frozen = nn.Linear(2, 2).requires_grad_(False)
    folder = lab.save(lab.trainer(policy), tmp_path)
    assert set(load_file(folder / "weights.safetensors")) == {"table"}
