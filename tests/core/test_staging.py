"""A checkpoint is written by a thread while training goes on."""

import errno
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
import torch
from accelerate import Accelerator
from tests.core.launching import call

from groupwise.recording import snapshot
from groupwise.storage import staging, tensors
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.staging import Checkpoint, Staged


def content(weight, **state):
    return Checkpoint(tensors={"weights": {"table": weight}}, state={"step": 1, **state})


@pytest.fixture
def held(monkeypatch):
    """An event without which no file of tensors is written."""
    event, save = threading.Event(), tensors.save_file

    def waits(*args, **options):
        assert event.wait(60)
        save(*args, **options)

    monkeypatch.setattr(tensors, "save_file", waits)
    yield event
    event.set()


def test_it_holds_what_was_when_it_began(tmp_path, held):
    checkpoints, weight = Checkpoints(tmp_path), torch.arange(3.0)
    state = {"inside": torch.ones(2), "words": ["a"]}
    checkpoints.begin(1, content(weight, **state))
    weight += 1
    state["inside"] += 1
    state["words"].append("b")
    assert not checkpoints.finish(wait=False)
    assert not (tmp_path / "step_1").exists()
    held.set()
    assert checkpoints.finish()
    loaded = checkpoints.load()
    assert loaded.tensors["weights"]["table"].tolist() == [0, 1, 2]
    assert loaded.state["inside"].tolist() == [1, 1]
    assert loaded.state["words"] == ["a"]


def test_it_is_complete_without_another_call(tmp_path):
    """A kill after it was written loses nothing."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.begin(1, content(torch.ones(1)))
    checkpoints.close()
    assert Checkpoints(tmp_path).load().state["step"] == 1


def test_the_next_one_waits_for_it(tmp_path, held):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.begin(1, content(torch.ones(1)))
    threading.Timer(0.05, held.set).start()
    second = Checkpoint(tensors={}, state={"step": 2})
    checkpoints.save(2, second)
    assert {path.name for path in tmp_path.iterdir()} == {"step_1", "step_2"}


def test_what_fails_in_the_thread_is_raised_and_leaves_the_one_before(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, Checkpoint(tensors={}, state={"step": 0}))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(tensors, "save_file", full)
    checkpoints.begin(1, content(torch.ones(1)))
    with pytest.raises(OSError, match="no space"):
        checkpoints.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["step_0"]
    assert checkpoints.finish()


def test_without_memory_for_copies_training_waits(tmp_path, monkeypatch):
    free = SimpleNamespace(available=staging.SPARE * 4 * 1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    monkeypatch.setattr(Checkpoints, "_write", None)  # the thread's
    checkpoints = Checkpoints(tmp_path)
    checkpoints.begin(1, content(torch.ones(1001)))
    assert Checkpoints(tmp_path).last().name == "step_1"


def test_a_run_goes_on_while_its_checkpoint_is_written(lab, tmp_path, monkeypatch):
    """The second step is over before the checkpoint of the first one is written."""
    checkpoints, second, write = Checkpoints(tmp_path), threading.Event(), Staged.write
    at_first = []

    def after_the_second(self, folder):
        assert second.wait(60)
        return write(self, folder)

    def on_step(step, metrics):
        if step == 1:
            at_first.append(trainer.policy.table.detach().clone())
            checkpoints.begin(step, snapshot.take(trainer))
        elif step == 2:
            second.set()

    monkeypatch.setattr(Staged, "write", after_the_second)
    trainer = lab.trainer(steps=2)
    assert lab.fit(trainer, on_step)
    checkpoints.finish()
    stored = checkpoints.load().tensors["weights"]["table"]
    assert torch.equal(stored, at_first[0])
    assert not torch.equal(stored, trainer.policy.table)


def together(lab, folder):
    """Two processes write one checkpoint; the second is late."""
    rank = Accelerator(cpu=True).process_index
    checkpoints = Checkpoints(folder, process=(rank, 2))
    write = Staged.write

    def late(self, target):
        time.sleep(0.5 * rank)
        return write(self, target)

    Staged.write = late
    checkpoints.begin(1, content(torch.ones(3)))
    rounds = 0
    while not checkpoints.finish(wait=False):
        rounds += 1
        time.sleep(0.05)
    return [rounds, checkpoints.load().state["step"], checkpoints.finish()]


@pytest.mark.slow
def test_no_process_waits_for_one_that_writes_longer(tmp_path):
    rounds, step, finished = call(together, tmp_path, 2)
    assert rounds > 1
    assert (step, finished) == (1, True)
