"""Processes wait for those that work, longer than a collective may take, and not for lost ones."""

import time

import pytest
import torch
from tests.core.launching import call

from groupwise.kit import processes, waiting
from groupwise.storage import checkpoint, saved, staging


def late_work(lab, folder):
    """Resuming, starting and saving, each 9 s long on one process, with a timeout of 4 s."""
    accelerator = processes.accelerator()
    waiting.limit(4)
    rank, seconds = accelerator.process_index, {}

    def late(on, answer):
        def work():
            time.sleep(9 if rank == on else 0)
            return answer

        return work

    for name, wait in {
        "resume": lambda: processes.each(late(1, rank), patient=True),
        "start": lambda: processes.first(late(0, "url"), patient=True),
    }.items():
        began = time.monotonic()
        seconds[name] = [wait(), time.monotonic() - began]
    return seconds


@pytest.mark.slow
def test_work_may_take_longer_than_the_timeout(tmp_path):
    seconds = call(late_work, tmp_path, 2)
    assert [answer for answer, _ in seconds.values()] == [[0, 1], "url"]
    assert all(8.9 < spent < 20 for _, spent in seconds.values())


def late_files(lab, folder):
    """A checkpoint written by both, and read, with one process slow at its files."""
    accelerator = processes.accelerator()
    waiting.limit(4)
    rank = accelerator.process_index
    if rank == 1:
        own = staging.sizes_and_checksums
        staging.sizes_and_checksums = lambda paths: time.sleep(9) or own(paths)
    examined = []
    problem = saved.problem

    def noted(path, *, contents=False):
        if not isinstance(contents, bool):
            examined.extend(contents)
            time.sleep(9 * (rank == 1))
        return problem(path, contents=contents)

    saved.problem = noted
    run = checkpoint.Checkpoints(folder, process=(rank, 2))
    content = staging.Checkpoint(
        tensors={"weights": {"w": torch.ones(3)}, "optimizer": {"m": torch.zeros(3)}},
        state={"step": 1},
    )
    run.save(1, content)
    loaded = run.load()
    return [loaded.state["step"], processes.each(lambda: sorted(examined))]


@pytest.mark.slow
def test_each_process_reads_its_share_of_a_checkpoint(tmp_path):
    step, (first, second) = call(late_files, tmp_path, 2)
    assert step == 1
    assert first
    assert second
    assert not set(first) & set(second)
    names = {name.partition(".")[0] for name in (*first, *second)}
    assert names == {"state", "weights", "optimizer"}


def test_a_collective_that_takes_too_long_names_the_setting():
    waiting.limit(600)
    error = RuntimeError("[/pytorch/gloo/transport/tcp/x.cc:1] Timed out waiting 4000ms")
    message = processes.loss_of_others(error)
    assert "has not answered for 600 s (train.timeout)" in message
