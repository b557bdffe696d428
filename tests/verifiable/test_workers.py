"""Workers: items that hang, crash or raise are reported, all others finish."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.effort import Effort

from groupwise_verifiable.outcome import WorkerFailure
from groupwise_verifiable.workers import map_each

sys.path.insert(0, str(Path(__file__).parent))
from hostile import behave

HOSTILE = {3: "hang", 7: "exit", 11: "memory", 15: "raise", 16: "hang in C"}
KINDS = {3: "hung", 7: "crashed", 11: "memory", 15: "raised", 16: "hung"}


def test_only_the_failing_items_are_reported() -> None:
    items = [HOSTILE.get(index, f"item {index}") for index in range(30)]
    with Effort() as effort:
        outcomes = map_each(behave, items, timeout=1.5)
    assert effort.wall < 20
    failures = {i: o for i, o in enumerate(outcomes) if isinstance(o, WorkerFailure)}
    assert {index: failure.kind for index, failure in failures.items()} == KINDS
    assert [o for o in outcomes if isinstance(o, str)] == [
        f"ITEM {index}" for index in range(30) if index not in HOSTILE
    ]
    assert failures[3].reason == "took longer than 1.5 s and was stopped"
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
