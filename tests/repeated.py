"""Repeated: what a run that is made again has in common with the first: its metrics but for time
and memory."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MEASURED = ("time/", "reward_time/", "decisions_per_second", "memory/")
"""How the names of metrics begin that depend on the machine."""


def repeatable(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in metrics.items() if not k.startswith(MEASURED)}


def lines(run: Path) -> list[dict[str, Any]]:
    """The repeatable metrics of each line of a run's metrics."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    return [repeatable(row) for row in rows]


def cut(run: Path, copy: Path, *, step: int) -> None:
    """Copy the folder of a run, without the checkpoints after this step."""
    shutil.copytree(run, copy)
    for folder in (copy / "checkpoints").glob("step_*"):
        if int(folder.name.removeprefix("step_")) > step:
            shutil.rmtree(folder)


def step_lines(run: Path) -> list[dict[str, Any]]:
    """Those of lines of steps alone."""
    return [line for line in lines(run) if "loss" in line]
