"""A resumed run equals an uninterrupted one; a killed save leaves a complete checkpoint."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from groupwise.algorithms.dapo import DAPO
from groupwise.algorithms.grpo import GRPO
from groupwise.errors import UserError
from groupwise.run import snapshot
from groupwise.storage import checkpoint, disk, state, tensors
from groupwise.storage.checkpoint import Checkpoint, Checkpoints, read_weights


class Killed(BaseException):
    pass


def without_times(metrics):
    return {k: v for k, v in metrics.items() if "time" not in k and k != "decisions_per_second"}


def run(lab, trainer, steps):
    return [without_times(lab.step(trainer)) for _ in range(steps)]


FORMS = {
    "grpo": GRPO,
    "kl": lambda: GRPO(GRPO.Config(beta=0.1)),
    "dapo": DAPO,
}


def save(trainer, folder, keep=1):
    return Checkpoints(folder, keep=keep).save(trainer.step, snapshot.take(trainer))


def load(trainer, folder):
    snapshot.restore(trainer, Checkpoints(folder).load())


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
    save(first, tmp_path)
    # New objects, as in a new process; the policy has its initial weights.
    second = lab.trainer(algorithm=FORMS[form](), **options)
    load(second, tmp_path)
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
    save(first, tmp_path)
    second = lab.trainer(reward=Learning())
    load(second, tmp_path)
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
    save(first, tmp_path)
    second = lab.trainer(algorithm=Counting())
    load(second, tmp_path)
    assert second.algorithm.steps == 7


def test_a_nested_state_is_equal_after_encoding_and_decoding():
    original = {
        "tensor": torch.arange(3),
        "nested": [1, 2.5, None, "text", {"inner": torch.ones(2, 2)}],
        "tuple": (1, (2, 3)),
        "numbers": {0: {"momentum": torch.zeros(1)}, (1, 2): "a"},
    }
    plain, tensors = state.encode(original, "state")
    decoded = state.decode(json.loads(json.dumps(plain)), tensors)
    assert repr(decoded) == repr(original)
    with pytest.raises(UserError, match=r"mine\.a\.0 cannot be saved: .*, found set"):
        state.encode({"a": [{1, 2}]}, "mine")


def test_tensors_with_similar_paths_stay_separate():
    original = {"a": {"b.w": torch.zeros(2)}, "a.b": {"w": torch.ones(2)}}
    plain, tensors = state.encode(original, "state")
    assert repr(state.decode(plain, tensors)) == repr(original)


def test_a_state_that_cannot_be_saved_is_refused_before_the_first_step(lab):
    class Unsaveable(Learning):
        def state_dict(self):
            return {"seen": {1, 2}}

    with pytest.raises(UserError, match=r"reward 'ones'\.seen cannot be saved: .*, found set"):
        snapshot.check(lab.trainer(reward=Unsaveable()))


def test_the_frozen_model_of_a_reward_is_not_in_checkpoints(lab):
    class Frozen(nn.Linear):
        def forward(self, completions, **columns):
            return [1.0] * len(completions)

    assert snapshot.take(lab.trainer(reward=Frozen(2, 2))).state["rewards"] == {}


def test_saving_does_not_change_training(lab, tmp_path):
    saved, plain = lab.trainer(), lab.trainer()
    run(lab, saved, 1)
    save(saved, tmp_path)
    run(lab, plain, 1)
    assert json.dumps(run(lab, saved, 2)) == json.dumps(run(lab, plain, 2))


def test_a_checkpoint_contains_no_pickle(lab, tmp_path):
    trainer = lab.trainer()
    run(lab, trainer, 1)
    folder = save(trainer, tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert names == {"weights.safetensors", "optimizer.safetensors", "state.json", "files.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_only_the_last_checkpoints_are_kept(lab, tmp_path):
    trainer = lab.trainer(steps=20)
    for _ in range(11):
        run(lab, trainer, 1)
        save(trainer, tmp_path, keep=3)
    assert {path.name for path in tmp_path.iterdir()} == {"step_9", "step_10", "step_11"}
    resumed = lab.trainer(steps=20)
    load(resumed, tmp_path)
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

    monkeypatch.setattr(tensors, "save_file", counted(tensors.save_file))
    monkeypatch.setattr(disk.shutil, "rmtree", counted(disk.shutil.rmtree))
    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    for name in ("mkdir", "write_text", "rename", "unlink"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    return lambda: calls


@pytest.mark.parametrize("kill_at", range(1, 19))
def test_a_killed_save_leaves_a_complete_checkpoint(lab, tmp_path, monkeypatch, kill_at):
    trainer = lab.trainer(steps=9)
    run(lab, trainer, 1)
    save(trainer, tmp_path)
    weights = {1: trainer.policy.table.detach().clone()}
    run(lab, trainer, 1)
    weights[2] = trainer.policy.table.detach().clone()
    with monkeypatch.context() as patch:
        calls = kill_at_call(patch, kill_at)
        try:
            save(trainer, tmp_path)
        except Killed:
            assert calls() == kill_at
        else:
            assert calls() < kill_at
            assert kill_at > 16  # so every operation of a save was killed once
    resumed = lab.trainer(steps=9)
    load(resumed, tmp_path)
    assert resumed.step in (1, 2)
    assert torch.equal(resumed.policy.table, weights[resumed.step])
    # The next save works beside the remains of the killed one.
    run(lab, trainer, 1)
    save(trainer, tmp_path)
    load(resumed, tmp_path)
    assert resumed.step == 3
    assert torch.equal(resumed.policy.table, trainer.policy.table)
    assert "step_3" in {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "unlisted"])
def test_an_incomplete_checkpoint_is_never_loaded(lab, tmp_path, name, damage):
    trainer = lab.trainer(steps=9)
    run(lab, trainer, 1)
    save(trainer, tmp_path, keep=2)
    run(lab, trainer, 1)
    incomplete = save(trainer, tmp_path, keep=2)
    if damage == "cut":
        (incomplete / name).write_bytes((incomplete / name).read_bytes()[:-1])
    elif damage == "gone":
        (incomplete / name).unlink()
    else:
        (incomplete / "files.json").unlink()
    resumed = lab.trainer(steps=9)
    load(resumed, tmp_path)
    assert resumed.step == 1
    # The step is repeated, and its checkpoint replaces the incomplete one.
    run(lab, resumed, 1)
    save(resumed, tmp_path, keep=2)
    assert Checkpoints(tmp_path).last() == incomplete
    assert torch.equal(resumed.policy.table, trainer.policy.table)


def test_a_save_removes_incomplete_and_later_checkpoints_and_keeps_earlier_ones(lab, tmp_path):
    trainer = lab.trainer(steps=9)
    for _ in range(4):
        run(lab, trainer, 1)
        save(trainer, tmp_path, keep=4)
    (tmp_path / "step_4" / "weights.safetensors").unlink()
    (tmp_path / "step_2" / "files.json").unlink()
    (tmp_path / "step_7.new").mkdir()
    (tmp_path / "mine").mkdir()
    trainer.step = 3  # resumed from the checkpoint before the incomplete one
    save(trainer, tmp_path, keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {"step_1", "step_3", "mine"}
    save(trainer, tmp_path, keep=1)
    assert Checkpoints(tmp_path).last().name == "step_3"


def test_a_folder_without_a_complete_checkpoint_is_named(lab, tmp_path):
    trainer = lab.trainer()
    with pytest.raises(UserError, match=r"no checkpoint in .*nowhere$"):
        load(trainer, tmp_path / "nowhere")
    (tmp_path / "step_3").mkdir()
    with pytest.raises(UserError, match=r"no checkpoint in .*: all of them are incomplete"):
        load(trainer, tmp_path)


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
    save(trainer, tmp_path)
    before = [p.detach().clone() for p in other.parameters()]
    with pytest.raises(UserError, match=f"(?s)is of another model.*{message}"):
        read_weights(other, Checkpoints(tmp_path).load())
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


def test_frozen_parameters_are_not_saved(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    weights = checkpoint.trained_weights(model)
    folder = Checkpoints(tmp_path).save(0, Checkpoint(tensors={"weights": weights}, state={}))
    assert set(load_file(folder / "weights.safetensors")) == {"1.weight", "1.bias"}
