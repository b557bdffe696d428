"""Resuming is as if nothing had happened; a save that was killed leaves a whole checkpoint."""

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


def timeless(metrics):
    return {k: v for k, v in metrics.items() if "time" not in k and k != "decisions_per_second"}


def run(lab, trainer, steps):
    return [timeless(lab.step(trainer)) for _ in range(steps)]


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
def test_two_and_two_steps_are_four(lab, form, tmp_path):
    options = {
        "steps": 4,
        "schedule": "cosine",
        "warmup_steps": 1,
        "weight_decay": 0.1,
        "updates_per_rollout": 2,
        "epochs": 2,
    }
    through = lab.trainer(algorithm=FORMS[form](), **options)
    expected = run(lab, through, 4)

    first = lab.trainer(algorithm=FORMS[form](), **options)
    run(lab, first, 2)
    save(first, tmp_path)
    # Fresh objects, as in a new process; the policy itself begins where the run began.
    second = lab.trainer(algorithm=FORMS[form](), **options)
    load(second, tmp_path)
    assert second.step == 2
    further = run(lab, second, 2)

    assert torch.equal(second.policy.table, through.policy.table)
    one, other = (t.learner.optimizer.adamw.state_dict()["state"][0] for t in (through, second))
    for name in ("step", "exp_avg", "exp_avg_sq"):
        assert torch.equal(one[name], other[name])
    assert json.dumps(further) == json.dumps(expected[2:])


class Learning:
    """A reward that learns from what it scored: it pays for what it has seen least."""

    def __init__(self):
        self.counts = torch.zeros(10)

    def __call__(self, completions, **columns):
        return [float(1 / (1 + self.counts[len(text)])) for text in completions]

    def refresh(self, rollouts, scores):
        for text in rollouts.completions:
            self.counts[len(text)] += 1

    def state_dict(self):
        return {"counts": self.counts, "notes": ["seen", {1: 2.5}]}

    def load_state_dict(self, given):
        assert given["notes"] == ["seen", {1: 2.5}]
        self.counts = given["counts"]


def test_a_reward_that_learns_goes_on_where_it_was(lab, tmp_path):
    through = lab.trainer(reward=Learning())
    expected = run(lab, through, 4)
    first = lab.trainer(reward=Learning())
    run(lab, first, 2)
    save(first, tmp_path)
    second = lab.trainer(reward=Learning())
    load(second, tmp_path)
    assert json.dumps(run(lab, second, 2)) == json.dumps(expected[2:])
    assert torch.equal(second.policy.table, through.policy.table)


def test_an_algorithm_with_state_goes_on_where_it_was(lab, tmp_path):
    class Counting(GRPO):
        steps = 0

        def state_dict(self):
            return {"steps": self.steps}

        def load_state_dict(self, given):
            self.steps = given["steps"]

    first = lab.trainer(algorithm=Counting())
    run(lab, first, 1)
    first.algorithm.steps = 7
    save(first, tmp_path)
    second = lab.trainer(algorithm=Counting())
    load(second, tmp_path)
    assert second.algorithm.steps == 7


def test_states_of_any_form_come_back_equal():
    given = {
        "tensor": torch.arange(3),
        "nested": [1, 2.5, None, "text", {"inner": torch.ones(2, 2)}],
        "tuple": (1, (2, 3)),
        "numbers": {0: {"momentum": torch.zeros(1)}, (1, 2): "a"},
    }
    plain, tensors = state.encode(given, "state")
    again = state.decode(json.loads(json.dumps(plain)), tensors)
    assert repr(again) == repr(given)
    with pytest.raises(UserError, match=r"mine\.a\.0 cannot be saved: .*, found set"):
        state.encode({"a": [{1, 2}]}, "mine")


def test_tensors_whose_paths_look_alike_stay_apart():
    given = {"a": {"b.w": torch.zeros(2)}, "a.b": {"w": torch.ones(2)}}
    plain, tensors = state.encode(given, "state")
    assert repr(state.decode(plain, tensors)) == repr(given)


def test_a_state_that_cannot_be_saved_is_known_before_the_first_step(lab):
    class Unsaveable(Learning):
        def state_dict(self):
            return {"seen": {1, 2}}

    with pytest.raises(UserError, match=r"reward 'ones'\.seen cannot be saved: .*, found set"):
        snapshot.check(lab.trainer(reward=Unsaveable()))


def test_a_frozen_model_of_a_reward_is_no_state_of_the_run(lab):
    class Frozen(nn.Linear):
        def forward(self, completions, **columns):
            return [1.0] * len(completions)

    assert snapshot.take(lab.trainer(reward=Frozen(2, 2))).state["rewards"] == {}


def test_saving_changes_nothing(lab, tmp_path):
    saved, plain = lab.trainer(), lab.trainer()
    run(lab, saved, 1)
    save(saved, tmp_path)
    run(lab, plain, 1)
    assert json.dumps(run(lab, saved, 2)) == json.dumps(run(lab, plain, 2))


def test_a_checkpoint_holds_no_pickle(lab, tmp_path):
    trainer = lab.trainer()
    run(lab, trainer, 1)
    folder = save(trainer, tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert names == {"weights.safetensors", "optimizer.safetensors", "state.json", "files.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_the_last_ones_are_kept(lab, tmp_path):
    trainer = lab.trainer(steps=20)
    for _ in range(11):
        run(lab, trainer, 1)
        save(trainer, tmp_path, keep=3)
    assert {path.name for path in tmp_path.iterdir()} == {"step_9", "step_10", "step_11"}
    fresh = lab.trainer(steps=20)
    load(fresh, tmp_path)
    assert fresh.step == 11


def spots(monkeypatch, kill_at):
    """Count what touches the disk, and be killed before the given call."""
    calls = 0

    def watched(function):
        def call(*arguments, **named):
            nonlocal calls
            calls += 1
            if calls == kill_at:
                raise Killed
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(tensors, "save_file", watched(tensors.save_file))
    monkeypatch.setattr(disk.shutil, "rmtree", watched(disk.shutil.rmtree))
    monkeypatch.setattr(os, "fsync", watched(os.fsync))
    for name in ("mkdir", "write_text", "rename", "unlink"):
        monkeypatch.setattr(Path, name, watched(getattr(Path, name)))
    return lambda: calls


@pytest.mark.parametrize("kill_at", range(1, 19))
def test_a_killed_save_leaves_a_whole_checkpoint(lab, tmp_path, monkeypatch, kill_at):
    trainer = lab.trainer(steps=9)
    run(lab, trainer, 1)
    save(trainer, tmp_path)
    weights = {1: trainer.policy.table.detach().clone()}
    run(lab, trainer, 1)
    weights[2] = trainer.policy.table.detach().clone()
    with monkeypatch.context() as patch:
        calls = spots(patch, kill_at)
        try:
            save(trainer, tmp_path)
        except Killed:
            assert calls() == kill_at
        else:
            assert calls() < kill_at
            assert kill_at > 16  # the test does kill at every spot there is
    fresh = lab.trainer(steps=9)
    load(fresh, tmp_path)
    assert fresh.step in (1, 2)
    assert torch.equal(fresh.policy.table, weights[fresh.step])
    # The next save works, whatever lies about.
    run(lab, trainer, 1)
    save(trainer, tmp_path)
    load(fresh, tmp_path)
    assert fresh.step == 3
    assert torch.equal(fresh.policy.table, trainer.policy.table)
    assert "step_3" in {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "unlisted"])
def test_a_torn_checkpoint_is_never_loaded(lab, tmp_path, name, damage):
    trainer = lab.trainer(steps=9)
    run(lab, trainer, 1)
    save(trainer, tmp_path, keep=2)
    run(lab, trainer, 1)
    torn = save(trainer, tmp_path, keep=2)
    if damage == "cut":
        (torn / name).write_bytes((torn / name).read_bytes()[:-1])
    elif damage == "gone":
        (torn / name).unlink()
    else:
        (torn / "files.json").unlink()
    fresh = lab.trainer(steps=9)
    load(fresh, tmp_path)
    assert fresh.step == 1
    # The step is done again, and its checkpoint takes the place of the torn one.
    run(lab, fresh, 1)
    save(fresh, tmp_path, keep=2)
    assert Checkpoints(tmp_path).last() == torn
    assert torch.equal(fresh.policy.table, trainer.policy.table)


def test_torn_and_later_ones_go_and_whole_ones_before_stay(lab, tmp_path):
    trainer = lab.trainer(steps=9)
    for _ in range(4):
        run(lab, trainer, 1)
        save(trainer, tmp_path, keep=4)
    (tmp_path / "step_4" / "weights.safetensors").unlink()
    (tmp_path / "step_2" / "files.json").unlink()
    (tmp_path / "step_7.new").mkdir()
    (tmp_path / "mine").mkdir()
    trainer.step = 3  # gone on with from before the torn one
    save(trainer, tmp_path, keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {"step_1", "step_3", "mine"}
    save(trainer, tmp_path, keep=1)
    assert Checkpoints(tmp_path).last().name == "step_3"


def test_no_checkpoint_is_told(lab, tmp_path):
    trainer = lab.trainer()
    with pytest.raises(UserError, match=r"no checkpoint in .*nowhere$"):
        load(trainer, tmp_path / "nowhere")
    (tmp_path / "step_3").mkdir()
    with pytest.raises(UserError, match=r"no checkpoint in .*: all of them are incomplete"):
        load(trainer, tmp_path)


@pytest.mark.parametrize(
    ("other", "told"),
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
        # Copying a [1] into a [3] would succeed.
        (
            nn.ParameterDict({"table": nn.Parameter(torch.zeros(8, 5, 4, 1))}),
            r"'table' has shape \[8, 5",
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_named(lab, tmp_path, other, told):
    trainer = lab.trainer()
    run(lab, trainer, 1)
    save(trainer, tmp_path)
    before = [p.detach().clone() for p in other.parameters()]
    with pytest.raises(UserError, match=f"(?s)is of another model.*{told}"):
        read_weights(other, Checkpoints(tmp_path).load())
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


def test_frozen_parameters_are_not_saved(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    weights = checkpoint.trained_weights(model)
    folder = Checkpoints(tmp_path).save(0, Checkpoint(tensors={"weights": weights}, state={}))
    assert set(load_file(folder / "weights.safetensors")) == {"1.weight", "1.bias"}
