"""Workers: items that hang, crash or raise are reported, all others finish."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.effort import Effort

from groupwise_verifiable import workers
from groupwise_verifiable.outcome import WorkerFailure
from groupwise_verifiable.workers import map_each

sys.path.insert(0, str(Path(__file__).parent))
import hostile
from hostile import after_a_wait, behave, behave_later

HOSTILE = {3: "hang", 7: "exit", 11: "memory", 15: "raise", 16: "hang in C"}
KINDS = {3: "hung", 7: "crashed", 11: "memory", 15: "raised", 16: "hung"}


@pytest.mark.slow
def test_only_the_failing_items_are_reported() -> None:
    items = [HOSTILE.get(index, f"item {index}") for index in range(30)]
    with Effort() as effort:
        outcomes = map_each(behave, items, timeout=0.5)
    assert effort.wall < 30
    failures = {i: o for i, o in enumerate(outcomes) if isinstance(o, WorkerFailure)}
    assert {index: failure.kind for index, failure in failures.items()} == KINDS
    assert [o for o in outcomes if isinstance(o, str)] == [
        f"ITEM {index}" for index in range(30) if index not in HOSTILE
    ]
    without = "took longer than 2.5 s, without 0.5 s of processor time, and was stopped"
    assert failures[3].reason == without
    assert not any(failure.may_pass for failure in failures.values())
    assert failures[7].reason == "ended its process (exit code 7)"
    assert failures[11].reason == "ran out of memory"
    assert failures[15].reason == "raised UnpicklableError: bad item"


def test_the_pool_works_after_failures_and_is_reused() -> None:
    map_each(behave, ["exit"] * 3, timeout=5)
    with Effort() as effort:
        assert map_each(behave, ["a", "b"], timeout=5) == ["A", "B"]
    assert effort.wall < 5
    assert map_each(behave, [], timeout=5) == []


def test_a_worker_imports_no_heavy_modules() -> None:
    assert map_each(behave, ["modules"], timeout=5) == [""]


@pytest.mark.slow
def test_an_item_has_processor_time_and_not_that_of_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that waits for the processor is like one that sleeps."""
    items = [(behave, "a", 0.9), (behave, "hang in C", 0.0), (behave, "b", 0.9)]
    monkeypatch.setattr(workers, "_LAST_RESORT", 50)
    first, hung, last = map_each(after_a_wait, items, timeout=0.6)
    assert (first, last) == ("A", "B")
    assert hung.reason == "took longer than 0.6 s of processor time and was stopped"


@pytest.mark.parametrize(
    ("actions", "end"),
    [
        ("hang,a", "A"),
        ("is killed,a", "A"),
        ("hang,hang", ("hung", False)),
        ("is killed,is killed", ("crashed", False)),
        ("hang,is killed", ("crashed", True)),
        ("is killed,exit", ("crashed", False)),
        ("is killed,hang in C", ("hung", False)),
    ],
)
@pytest.mark.slow(after=2)
def test_what_may_be_the_machines_doing_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actions: str, end: object
) -> None:
    """The same end twice is the item's; two different ones may be the machine's."""
    if "hang in C" in actions:  # its processor time must pass first, however busy the machine is
        monkeypatch.setattr(workers, "_LAST_RESORT", 100)
    right, outcome = map_each(
        behave_later, [("a,a", str(tmp_path / "a")), (actions, str(tmp_path / "b"))], timeout=0.2
    )
    assert right == "A"
    if isinstance(outcome, WorkerFailure):
        assert (outcome.kind, outcome.may_pass) == end
    else:
        assert outcome == end


@pytest.mark.parametrize("size", [1, 100_000], ids=["few bytes", "more than the pipe takes"])
@pytest.mark.slow(after=1)
def test_items_that_no_worker_takes_may_pass(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(workers, "_STARTING", 0.3)
    workers._close()
    with monkeypatch.context() as patch:
        patch.setattr(workers, "_limit", hostile.never_starts)
        outcomes = map_each(behave, ["a" * size] * 3, timeout=0.02)
    assert [(each.kind, each.may_pass) for each in outcomes] == [("unstarted", True)] * 3
    monkeypatch.undo()
    assert map_each(behave, ["a"], timeout=5) == ["A"]


def test_items_that_are_not_done_in_time_may_pass_and_the_pool_works_on() -> None:
    map_each(behave, ["a"], timeout=5)
    outcomes = map_each(behave, ["b", *["hang"] * 20], timeout=60, within=1)
    assert outcomes[0] == "B"
    assert all(each.may_pass for each in outcomes[1:])
    assert map_each(behave, ["c"], timeout=5) == ["C"]


def test_functions_of_main_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behave, "__module__", "__main__")
    with pytest.raises(ValueError, match="defined in __main__"):
        map_each(behave, ["a"], timeout=5)


SCRIPT = """
import multiprocessing, sys
print("main runs", flush=True)
sys.path[:0] = {path!r}
from hostile import behave
from groupwise_verifiable.workers import map_each

def work(name, item):
    print(name, map_each(behave, [item], timeout=20), flush=True)

work("parent", "a")
child = multiprocessing.get_context("fork").Process(target=work, args=("child", "b"))
child.start()
child.join()
assert child.exitcode == 0
work("parent", "c")
"""


def test_workers_of_scripts_without_a_main_guard_and_of_forked_processes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(path=[str(Path(__file__).parent), *sys.path]))
    process = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-u", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.stderr == ""
    lines = ["main runs", "parent ['A']", "child ['B']", "parent ['C']", ""]
    assert process.stdout.split("\n") == lines
