"""What a run notes of its starts: commands without secrets, packages, devices; and its memory."""

import json
import sys
from importlib import metadata

import psutil
import pytest
import torch

from groupwise import train
from groupwise.kit import secrets
from groupwise.metrics.footprint import GIB, Footprint
from groupwise.run import start
from groupwise.storage import run_info


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["/usr/bin/groupwise", "train", "my run.yaml"], "groupwise train 'my run.yaml'"),
        (["/x/groupwise/__main__.py", "resume", "runs/a"], "python -m groupwise resume runs/a"),
        (["train.py", "rewards.0.api_key=hunter2"], "train.py 'rewards.0.api_key=*****'"),
        (
            ["train.py", "--hf-token", "abc", "--steps", "3"],
            "train.py --hf-token '*****' --steps 3",
        ),
        (["train.py", "--password=abc"], "train.py '--password=*****'"),
        (["groupwise", "a.b=[{api_key: abc, x: 1}]"], "groupwise 'a.b=*****'"),
        (["groupwise", "url=https://me:abc@host/x"], "groupwise 'url=*****'"),
        (["groupwise", "policy.eos_token=<end>"], "groupwise 'policy.eos_token=<end>'"),
    ],
)
def test_a_command_line_is_written_as_typed_without_secrets(arguments, shown) -> None:
    assert start.command(arguments).replace(secrets.MASK, "*****") == shown


def test_each_start_of_a_run_is_noted(lab, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["groupwise", "train", "x.yaml"])
    monkeypatch.setattr(run_info, "MOST_STARTS", 3)
    for steps in (1, 2, 3, 4):
        train(
            policy=lab.Tabular(),
            prompts=lab.rows(),
            rewards=[lab.ones],
            train={"steps": steps, "groups_per_step": 2, "group_size": 2},
            output=tmp_path / "run",
            resume=steps > 1,
            quiet=True,
        )
    noted = run_info.starts(tmp_path / "run")
    assert [each["step"] for each in noted] == [0, 2, 3]  # the first, and the last ones
    assert noted[0]["command"] == "groupwise train x.yaml"
    assert noted[0]["packages"]["torch"] == metadata.version("torch")
    assert "ruff" not in noted[0]["packages"]
    assert sum(noted[0]["devices"].values()) == noted[0]["processes"] == 1
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    held = [row["memory/host"] for row in rows if "loss" in row]
    assert len(held) == 4
    assert all(0.05 < each < psutil.virtual_memory().total / GIB for each in held)


def test_memory_of_a_gpu_is_the_most_of_each_step(monkeypatch) -> None:
    peaks = {"allocated": 3 * GIB, "reserved": 4 * GIB}
    for name, peak in peaks.items():
        monkeypatch.setattr(torch.cuda, f"max_memory_{name}", lambda _, peak=peak: peak)
    resets = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    device = torch.device("cuda", 0)
    taken = Footprint(device).take()
    assert (taken["memory/device"], taken["memory/device_reserved"]) == (3, 4)
    assert resets == [device]
    assert "memory/device" not in Footprint(torch.device("cpu")).take()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_of_a_gpu_has_what_a_step_allocated() -> None:
    footprint = Footprint(torch.device("cuda", torch.cuda.current_device()))
    footprint.take()
    before = footprint.take()["memory/device"]
    torch.empty(GIB // 4, dtype=torch.uint8, device="cuda")  # freed at once
    assert footprint.take()["memory/device"] - before == pytest.approx(0.25, abs=0.01)
    assert footprint.take()["memory/device"] == pytest.approx(before, abs=0.01)
