"""Resuming is as if nothing had happened; a save that was killed leaves a whole checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from groupwise import checkpoint
from groupwise.algorithm import DAPO, GRPO
from groupwise.checkpoint import load_checkpoint, read_state, save_checkpoint
from groupwise.errors import UserError


class Killed(BaseException):
    pass


def timeless(metrics):
    return {k: v for k, v in metrics.items() if "time" not in k and k != "decisions_per_second"}


def run(trainer, steps):
    return [timeless(trainer.train_step()) for _ in range(steps)]


FORMS = {
    "grpo": GRPO,
    "kl": lambda: GRPO(GRPO.Config(beta=0.1)),
    "dapo": DAPO,
}


def save(trainer, folder):
    return save_checkpoint(folder, trainer.policy, trainer.optimizer, trainer.state_dict())


def load(trainer, folder):
    trainer.load_state_dict(load_checkpoint(folder, trainer.policy, trainer.optimizer))


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
    expected = run(through, 4)

    first = lab.trainer(algorithm=FORMS[form](), **options)
    run(first, 2)
    save(first, tmp_path)
    # Fresh objects, as in a new process; the policy itself begins where the run began.
    second = lab.trainer(algorithm=FORMS[form](), **options)
    load(second, tmp_path)
    assert second.step == 2
    found = run(second, 2)

    assert torch.equal(second.policy.table, through.policy.table)
    state, other = (t.optimizer.state_dict()["state"][0] for t in (through, second))
    for name in ("step", "exp_avg", "exp_avg_sq"):
        assert torch.equal(state[name], other[name])
    assert json.dumps(found) == json.dumps(expected[2:])


def test_saving_changes_nothing(lab, tmp_path):
    saved, plain = lab.trainer(), lab.trainer()
    run(saved, 1)
    save(saved, tmp_path)
    run(plain, 1)
    assert json.dumps(run(saved, 2)) == json.dumps(run(plain, 2))


def test_a_checkpoint_holds_no_pickle(lab, tmp_path):
    trainer = lab.trainer()
    run(trainer, 1)
    folder = save(trainer, tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert names == {"weights.safetensors", "optimizer.safetensors", "state.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
    assert read_state(tmp_path)["step"] == 1


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

    monkeypatch.setattr(checkpoint, "save_file", watched(checkpoint.save_file))
    monkeypatch.setattr(checkpoint.shutil, "rmtree", watched(checkpoint.shutil.rmtree))
    for name in ("mkdir", "write_text", "rename"):
        monkeypatch.setattr(Path, name, watched(getattr(Path, name)))
    return lambda: calls


@pytest.mark.parametrize("kill_at", range(1, 11))
def test_a_killed_save_leaves_a_whole_checkpoint(lab, tmp_path, monkeypatch, kill_at):
    trainer = lab.trainer(steps=9)
    run(trainer, 1)
    save(trainer, tmp_path)
    weights = {1: trainer.policy.table.detach().clone()}
    run(trainer, 1)
    weights[2] = trainer.policy.table.detach().clone()
    with monkeypatch.context() as patch:
        calls = spots(patch, kill_at)
        try:
            save(trainer, tmp_path)
        except Killed:
            assert calls() == kill_at
        else:
            assert calls() < kill_at
            assert kill_at > 7  # the test does kill at every spot there is
    fresh = lab.trainer(steps=9)
    load(fresh, tmp_path)
    assert fresh.step in (1, 2)
    assert torch.equal(fresh.policy.table, weights[fresh.step])
    # The next save works, whatever lies about.
    run(trainer, 1)
    save(trainer, tmp_path)
    load(fresh, tmp_path)
    assert fresh.step == 3
    assert torch.equal(fresh.policy.table, trainer.policy.table)
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_no_checkpoint_is_told(lab, tmp_path):
    trainer = lab.trainer()
    with pytest.raises(UserError, match="no checkpoint in"):
        load(trainer, tmp_path / "nowhere")
    with pytest.raises(UserError, match="no checkpoint in"):
        read_state(tmp_path)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (nn.ParameterDict({"table": nn.Parameter(torch.zeros(1))}), r"'table' is \[8, 5, 4, 3\]"),
        (nn.ParameterDict({"other": nn.Parameter(torch.zeros(1))}), "they differ in 'other'"),
        (nn.Linear(2, 2), "they differ in 'bias'"),
    ],
)
def test_a_checkpoint_of_another_model_is_named(lab, tmp_path, other, told):
    trainer = lab.trainer()
    run(trainer, 1)
    save(trainer, tmp_path)
    before = [p.detach().clone() for p in other.parameters()]
    with pytest.raises(UserError, match=f"(?s)is of another model.*{told}"):
        load_checkpoint(tmp_path, other, torch.optim.AdamW(other.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


def test_a_single_value_is_never_spread_over_a_model(lab, tmp_path):
    """Copying a [1] into a [3] would succeed."""
    small, large = nn.Linear(1, 1, bias=False), nn.Linear(3, 1, bias=False)
    save_checkpoint(tmp_path, small, torch.optim.AdamW(small.parameters()), {})
    with pytest.raises(UserError, match="another model"):
        load_checkpoint(tmp_path, large, torch.optim.AdamW(large.parameters()))


def test_frozen_parameters_are_not_saved(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[1].parameters())
    folder = save_checkpoint(tmp_path, model, optimizer, {"step": 0})
    saved = checkpoint.load_file(folder / "weights.safetensors")
    assert set(saved) == {"1.weight", "1.bias"}
    assert load_checkpoint(tmp_path, model, optimizer) == {"step": 0}
