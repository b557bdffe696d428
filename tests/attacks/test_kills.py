"""SIGKILL and a full disk, aimed at every touch of the disk; and a disk that really fills up."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import projects

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def victim() -> Iterator[Ask]:
    """Runs a command in a folder in a process of its own; its exit code, and touches."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("victim.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )

    def ask(home: Path, *command: str, **options: Any) -> dict[str, Any]:
        job = {"home": str(home), "command": ["train", "run.yaml", *command], **options}
        job["terminal"] = str(terminal(home))
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    process.wait(timeout=60)
    process.stdout.close()


@pytest.fixture(scope="module")
def whole(victim, tmp_path_factory) -> tuple[int, Any]:
    """How often an uninterrupted run touches the disk, and what comes out of it."""
    home = projects.make(tmp_path_factory.mktemp("whole"))
    answer = victim(home)
    assert answer["exit"] == 0, terminal(home).read_text()
    return answer["touches"], projects.outcome(home / "run")


def terminal(home: Path) -> Path:
    """What the last command printed; beside the folder, whose disk may be full."""
    return home.with_name(f"{home.name}.txt")


def spots(touches: int, full: bool) -> Iterator[int]:
    """All of them, or as many as take some seconds, every part of the run among them."""
    return iter(range(1, touches + 1)) if full else iter(range(5, touches, max(1, touches // 7)))


def go_on(victim: Ask, home: Path) -> None:
    """To the end of the run, from its checkpoint if there is one."""
    answer = victim(home, "--resume")
    text = terminal(home).read_text()
    if answer["exit"] == 2:
        assert "nothing to resume" in text or "no checkpoint in" in text
        # Not in the way of another, unless a model was saved where a checkpoint had no room.
        answer = victim(home, *(["--overwrite"] if (home / "run" / "model").exists() else []))
        text = terminal(home).read_text()
    assert answer["exit"] == 0, text


@pytest.mark.attack(
    "A killed run goes on as if nothing had happened: the same metrics, the same weights",
    "SIGKILL at every write, rename and removal of a run, then resumed",
)
def test_killed_at_every_touch(victim, whole, tmp_path, tries, full):
    touches, expected = whole
    for spot in spots(touches, full):
        home = projects.make(tmp_path / str(spot))
        assert victim(home, at=spot)["exit"] == -9
        go_on(victim, home)
        assert projects.outcome(home / "run") == expected, spot
        tries()


@pytest.mark.attack(
    "A full disk ends a run with a sentence, and costs at most the step it was at",
    "no space from every write of a run on, then space again, and resumed",
)
def test_a_disk_that_is_full_at_every_write(victim, whole, tmp_path, tries, full):
    touches, expected = whole
    for spot in spots(touches, full):
        home = projects.make(tmp_path / str(spot))
        answer = victim(home, at=spot, what="full")
        text = terminal(home).read_text()
        assert "Traceback" not in text, text
        if answer["exit"] == 2:
            assert "no space left on device" in text.replace("\n", " ")
            go_on(victim, home)
        assert projects.outcome(home / "run") == expected, spot
        tries()


@pytest.mark.attack(
    "A full disk ends a run with a sentence, and costs at most the step it was at",
    "a disk of a few megabytes that really fills up, then space again, and resumed",
)
def test_a_disk_that_fills_up(victim, whole, tmp_path, tries, full):
    home = tmp_path / "disk"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", home]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this user may mount nothing")
    try:
        sizes = range(1_000, 26_000_000, 500_000) if full else (200_000, 9_000_000)
        for space in sizes:
            projects.make(home)
            subprocess.run(["rm", "-rf", home / "run"], check=True)
            left = os.statvfs(home)
            ballast = home / "ballast"
            ballast.write_bytes(bytes(max(0, left.f_bavail * left.f_frsize - space)))
            answer = victim(home)
            assert answer["exit"] in (0, 2), terminal(home).read_text()
            ballast.unlink()
            if answer["exit"]:
                go_on(victim, home)
            assert projects.outcome(home / "run") == whole[1], space
            tries()
    finally:
        subprocess.run(["umount", home], check=True)


def test_every_kind_of_touch_is_aimed_at(whole):
    assert whole[0] > 60
