"""SIGKILL and a full disk at every operation on the disk, and a real disk that fills up."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core.launching import Job
from tests.flow.conftest import sd3

from . import projects

POLICIES = ("groupwise_llm.policy", "groupwise_flow.policy")


def train_until(home: Path, *arguments: str, at: int = 0, what: str = "kill") -> int:
    """The exit code of a run in a separate process; at operation `at` a kill or a full disk."""
    command = (
        Path(__file__).with_name("victim.py"),
        operation_count(home),
        at,
        what,
        "train",
        "run.yaml",
    )
    with chdir(home):
        job = Job(*command, *arguments, terminals=home, imports=POLICIES)
    ((code,), _) = job.end()
    return code


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> tuple[int, Any]:
    """The number of operations of an uninterrupted run on the disk, and its outcome."""
    home = projects.make(tmp_path_factory.mktemp("uninterrupted"))
    assert train_until(home) == 0, terminal(home).read_text()
    return int(operation_count(home).read_text()), projects.outcome(home / "run")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory) -> Path:
    """The folder of a tiny image model."""
    folder = tmp_path_factory.mktemp("pipeline")
    torch.manual_seed(0)
    sd3().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def uninterrupted_pictures(pipeline, tmp_path_factory) -> tuple[int, Any]:
    """The same of a run of images."""
    home = projects.make_pictures(tmp_path_factory.mktemp("uninterrupted_pictures"), pipeline)
    assert train_until(home) == 0, terminal(home).read_text()
    return int(operation_count(home).read_text()), projects.outcome(home / "run")


def terminal(home: Path) -> Path:
    """The output of the last command, in a file outside the folder, whose disk may be full."""
    return home.with_name(f"{home.name}-0.txt")


def operation_count(home: Path) -> Path:
    """The file with the number of operations of the last command."""
    return home.with_name(f"{home.name}.count")


def operation_numbers(count: int, full: bool) -> Iterator[int]:
    """All numbers with --full, else about 5, spread over the run."""
    return iter(range(1, count + 1)) if full else iter(range(5, count, max(1, count // 5)))


def resume_to_the_end(home: Path) -> None:
    """Resumes the run from its checkpoint, or starts it again if there is none."""
    code = train_until(home, "--resume")
    text = terminal(home).read_text()
    if code == 2:
        assert "nothing to resume" in text or "no checkpoint in" in text
        # --overwrite is needed only if a model was saved, but no checkpoint.
        code = train_until(home, *(["--overwrite"] if (home / "run" / "model").exists() else []))
        text = terminal(home).read_text()
    assert code == 0, text


@pytest.mark.attack(
    "A killed run that is resumed has the metrics and weights of an uninterrupted one",
    "SIGKILL at every write, rename and removal of a run, then resumed",
)
def test_a_run_killed_at_any_operation_can_be_resumed(uninterrupted, tmp_path, tries, full):
    count, expected = uninterrupted
    for number in operation_numbers(count, full):
        home = projects.make(tmp_path / str(number))
        assert train_until(home, at=number) == -9
        resume_to_the_end(home)
        assert projects.outcome(home / "run") == expected, number
        tries()


@pytest.mark.attack(
    "A killed run that is resumed has the metrics and weights of an uninterrupted one",
    "SIGKILL at operations of a run of images whose prompts are drawn beside different ones",
)
def test_a_killed_run_of_images_can_be_resumed(
    uninterrupted_pictures, pipeline, tmp_path, tries, full
):
    count, expected = uninterrupted_pictures
    for number in range(count // 3, count, 15 if full else count // 4):
        home = projects.make_pictures(tmp_path / str(number), pipeline)
        assert train_until(home, at=number) == -9
        resume_to_the_end(home)
        assert projects.outcome(home / "run") == expected, number
        tries()


@pytest.mark.attack(
    "A full disk ends a run with an error of one sentence, and at most the current step is lost",
    "no space left from each write of a run on, then resumed with free space",
)
def test_a_run_with_a_full_disk_at_any_write_can_be_resumed(uninterrupted, tmp_path, tries, full):
    count, expected = uninterrupted
    for number in operation_numbers(count, full):
        home = projects.make(tmp_path / str(number))
        code = train_until(home, at=number, what="full")
        text = terminal(home).read_text()
        assert "Traceback" not in text, text
        if code == 2:
            assert "no space left on device" in text.replace("\n", " ")
            resume_to_the_end(home)
        assert projects.outcome(home / "run") == expected, number
        tries()


@pytest.mark.attack(
    "A full disk ends a run with an error of one sentence, and at most the current step is lost",
    "a real disk of a few megabytes that fills up, then resumed with free space",
)
def test_a_run_on_a_disk_that_fills_up_can_be_resumed(tmp_path, tries, full):
    home = tmp_path / "disk"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", home]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this user may mount nothing")
    expected = projects.make(tmp_path / "uninterrupted", model=projects.BASE)
    assert train_until(expected) == 0, terminal(expected).read_text()
    try:
        sizes = range(1_000, 26_000_000, 500_000) if full else (200_000, 9_000_000)
        for space in sizes:
            projects.make(home, model=projects.BASE)
            subprocess.run(["rm", "-rf", home / "run"], check=True)
            disk = os.statvfs(home)
            ballast = home / "ballast"
            ballast.write_bytes(bytes(max(0, disk.f_bavail * disk.f_frsize - space)))
            code = train_until(home)
            assert code in (0, 2), terminal(home).read_text()
            ballast.unlink()
            if code:
                resume_to_the_end(home)
            assert projects.outcome(home / "run") == projects.outcome(expected / "run"), space
            tries()
    finally:
        subprocess.run(["umount", home], check=True)


def test_operations_on_the_disk_are_counted(uninterrupted):
    assert uninterrupted[0] > 60
