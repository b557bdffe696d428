"""Torch's threads follow the load of the machine, unless the user sets their number."""

import subprocess
import sys
import threading

import pytest
import torch

from groupwise.episodes import threads

CORES = 4


@pytest.fixture
def machine(monkeypatch):
    """A machine of four cores; advance(seconds, others, own): cores used by whom since the last."""
    for name in threads.SET_BY_USER:
        monkeypatch.delenv(name, raising=False)
    now = threads.Reading(100.0, 0.0, 0.0)

    def advance(seconds: float, *, others: float, own: float = 1.0) -> None:
        nonlocal now
        idle = CORES - others - own
        now = threads.Reading(
            now.clock + seconds, now.idle + idle * seconds, now.own + own * seconds
        )

    monkeypatch.setattr(threads, "read", lambda: now)
    monkeypatch.setattr(threads.time, "monotonic", lambda: now.clock)
    before = torch.get_num_threads()
    torch.set_num_threads(CORES)
    yield advance
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("others", "own", "expected"),
    [(0.0, 4.0, 4), (0.0, 1.0, 4), (0.4, 3.6, 4), (1.0, 3.0, 3), (2.7, 1.3, 1), (4.0, 0.0, 1)],
)
def test_there_are_as_many_threads_as_free_cores(machine, others, own, expected):
    running = threads.Threads()
    machine(2.0, others=others, own=own)
    running.adapt()
    assert torch.get_num_threads() == expected


def test_the_number_falls_and_rises_with_the_load(machine):
    numbers = []
    with threads.following_load(torch.device("cpu")) as running:
        for others in (0.0, 3.0, 3.0, 1.0, 0.0):
            machine(1.5, others=others)
            running.adapt()
            numbers.append(torch.get_num_threads())
    assert numbers == [4, 1, 1, 3, 4]
    with threads.following_load(torch.device("cpu")) as running:
        machine(1.5, others=3.0)
        running.adapt()
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == CORES


def test_a_short_interval_is_not_measured(machine):
    running = threads.Threads()
    machine(0.5, others=3.0)
    running.adapt()
    assert torch.get_num_threads() == CORES


@pytest.mark.parametrize("name", threads.SET_BY_USER)
def test_a_number_set_by_the_user_stays(machine, monkeypatch, name):
    monkeypatch.setenv(name, "4")
    running = threads.Threads()
    machine(2.0, others=3.0)
    running.adapt()
    assert not running.adapts
    assert torch.get_num_threads() == CORES


def test_one_thread_a_gpu_and_other_python_threads_change_nothing(machine):
    with threads.following_load(torch.device("cuda")) as on_gpu:
        assert not on_gpu.adapts
    running = threads.Threads()
    machine(2.0, others=3.0)
    other = threading.Thread(target=running.adapt)
    other.start()
    other.join()
    assert torch.get_num_threads() == CORES
    torch.set_num_threads(1)
    assert not threads.Threads().adapts


def test_the_time_of_child_processes_is_our_own():
    before = threads.read()
    busy = "import time\nwhile time.process_time() < 0.4: pass"
    with subprocess.Popen(
        [sys.executable, "-c", busy + "\ninput()"], stdin=subprocess.PIPE
    ) as child:
        while (
            threads.read().own - before.own < 0.4
        ):  # still running: the test ends when it is counted
            pass
        assert child.poll() is None
        child.communicate(b"\n")
    after = threads.read()
    assert after.own - before.own >= 0.4
    assert after.clock > before.clock
    assert after.idle >= before.idle
