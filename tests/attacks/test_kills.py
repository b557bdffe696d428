"""SIGKILL and a full disk, aimed at every touch of the disk; and a disk that really fills up."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from tests.core.launching import Job

from . import projects


def victim(home: Path, *words: str, at: int = 0, what: str = "kill") -> int:
    """The exit code of a training in a folder, in a process of its own."""
    command = (Path(__file__).with_name("victim.py"), touches(home), at, what, "train", "run.yaml")
    with chdir(home):
        job = Job(*command, *words, terminals=home, imports=["groupwise_llm.policy"])
    ((code,), _) = job.end()
    return code


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[int, Any]:
    """How often an uninterrupted run touches the disk, and what comes out of it."""
    home = projects.make(tmp_path_factory.mktemp("whole"))
    assert victim(home) == 0, terminal(home).read_text()
    return int(touches(home).read_text()), projects.outcome(home / "run")


def terminal(home: Path) -> Path:
    """What the last command printed; beside the folder, whose disk may be full."""
    return home.with_name(f"{home.name}-0.txt")


def touches(home: Path) -> Path:
    """Where the last command left how often it touched the disk."""
    return home.with_name(f"{home.name}.count")


def spots(count: int, full: bool) -> Iterator[int]:
    """All of them, or as many as take some seconds, every part of the run among them."""
    return iter(range(1, count + 1)) if full else iter(range(5, count, max(1, count // 7)))


def go_on(home: Path) -> None:
    """To the end of the run, from its checkpoint if there is one."""
    code = victim(home, "--resume")
    text = terminal(home).read_text()
    if code == 2:
        assert "nothing to resume" in text or "no checkpoint in" in text
        # Not in the way of another, unless a model was saved where a checkpoint had no room.
        code = victim(home, *(["--overwrite"] if (home / "run" / "model").exists() else []))
        text = terminal(home).read_text()
    assert code == 0, text


@pytest.mark.attack(
    "A killed run goes on as if nothing had happened: the same metrics, the same weights",
    "SIGKILL at every write, rename and removal of a run, then resumed",
)
def test_killed_at_every_touch(whole, tmp_path, tries, full):
    count, expected = whole
    for spot in spots(count, full):
        home = projects.make(tmp_path / str(spot))
        assert victim(home, at=spot) == -9
        go_on(home)
        assert projects.outcome(home / "run") == expected, spot
        tries()


@pytest.mark.attack(
    "A full disk ends a run with a sentence, and costs at most the step it was at",
    "no space from every write of a run on, then space again, and resumed",
)
def test_a_disk_that_is_full_at_every_write(whole, tmp_path, tries, full):
    count, expected = whole
    for spot in spots(count, full):
        home = projects.make(tmp_path / str(spot))
        code = victim(home, at=spot, what="full")
        text = terminal(home).read_text()
        assert "Traceback" not in text, text
        if code == 2:
            assert "no space left on device" in text.replace("\n", " ")
            go_on(home)
        assert projects.outcome(home / "run") == expected, spot
        tries()


@pytest.mark.attack(
    "A full disk ends a run with a sentence, and costs at most the step it was at",
    "a disk of a few megabytes that really fills up, then space again, and resumed",
)
def test_a_disk_that_fills_up(whole, tmp_path, tries, full):
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
            code = victim(home)
            assert code in (0, 2), terminal(home).read_text()
            ballast.unlink()
            if code:
                go_on(home)
            assert projects.outcome(home / "run") == whole[1], space
            tries()
    finally:
        subprocess.run(["umount", home], check=True)


def test_every_kind_of_touch_is_aimed_at(whole):
    assert whole[0] > 60
