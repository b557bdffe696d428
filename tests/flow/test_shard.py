"""A policy that is divided among processes samples, answers, learns and saves as a whole one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("shard_job.py")
MODELS = ("sd3", "sd3.5", "flux with idle parts")


@pytest.fixture(scope="module")
def three(folders, tmp_path_factory):
    """What three processes found: rows of 16 among them are 6, 6 and 4, LoRA's of 2 are 1, 1, 0."""
    root = tmp_path_factory.mktemp("three")
    for name in MODELS:
        (root / name).symlink_to(folders[name])
    done = subprocess.run(
        [sys.executable, str(JOB), str(root), "3"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((root / "found.json").read_text())


@pytest.mark.parametrize("case", ["full", "lora", "flux", "bf16"])
def test_it_starts_and_samples_alike(three, case):
    """The same weights, adapters too, of which no process holds more than its part."""
    found = three[case]
    assert found["weights"] == 0
    assert found["held"] < 0.4
    assert max(found["samples"], found["said"]) < 1e-5


@pytest.mark.parametrize("case", ["full", "lora", "flux"])
def test_it_learns_alike(three, case):
    found = three[case]
    assert found["log-probs"] < 1e-5
    assert found["gradient"] < 1e-5
    assert found["after a step"] < 1e-4 < -found["unmoved"]


@pytest.mark.parametrize("case", ["full", "lora", "flux"])
def test_kept_weights_are_divided_too(three, case):
    found = three[case]
    assert max(found["reference"], found["average"]) < 1e-4
    assert found["back"] == 0


def test_all_processes_make_equally_many_passes(three):
    """Groups share noise until windows that start elsewhere on each: whole policies differ."""
    assert three["full"]["uneven passes"] > 0
    assert all(found["passes apart"] == 0 for found in three.values())
    # The unconditional branch is known until the weights change.
    assert [three["full"][n] for n in ("passes", "passes by other weights")] == [1, 2]


@pytest.mark.parametrize("case", ["full", "lora", "flux"])
def test_what_it_saves_is_what_a_whole_one_saves(three, case):
    assert three[case]["saved"] < 1e-5
    assert case != "flux" or three[case]["files"] > 2  # with an index, read by both kinds


def test_rounding_is_measured_alike(three):
    assert three["bf16"]["rounding"] < 1e-7
