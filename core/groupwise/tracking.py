"""Tracking: metrics.jsonl, the samples, and the progress bar."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class MetricsFile:
    """Appends a line a step; what is on disk is always whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        line = json.dumps({"step": step, **{k: finite(v) for k, v in metrics.items()}})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def truncate_after(self, step: int) -> None:
        """Drop lines of later steps: a resumed run writes them again."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except ValueError:  # the half line of a killed run
                continue
        self.path.write_text("".join(kept), encoding="utf-8")


def write_samples(path: Path, samples: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
    path.write_text("".join(lines), encoding="utf-8")


def finite(value: Any) -> Any:
    """JSON has no NaN: null instead; floats at six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


class Display:
    """The bar on the terminal: step, reward, accuracy, tokens per second, time left."""

    def __init__(self, *, steps: int, unit: str, quiet: bool, done: int = 0) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self.unit = unit
        self._progress = Progress(
            TextColumn("[bold]step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[summary]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )
        self._task = self._progress.add_task("train", total=steps, completed=done, summary="")
        self._steps = steps

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, message: str) -> None:
        self.console.print(message, highlight=False)

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        summary = (
            f"reward {metrics['reward']:.3f}  accuracy {metrics['accuracy']:.2f}  "
            f"{metrics['tokens_per_second']:,.0f} {self.unit}/s"
        )
        self._progress.update(self._task, completed=step, summary=summary)
        every = max(1, self._steps // 20)
        if not self.console.is_terminal and (step % every == 0 or step == self._steps):
            self.say(f"step {step}/{self._steps}  {summary}")
        if "evaluation/accuracy" in metrics:
            self.say(f"step {step}: held-out accuracy {metrics['evaluation/accuracy']:.3f}")
