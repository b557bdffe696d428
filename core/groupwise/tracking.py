"""Tracking: metrics.jsonl, the samples with their images, and the progress bar."""

import errno
import json
import math
import os
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

from groupwise.disk import reason, remove, write


class MetricsFile:
    """Appends a line a step; what is on disk is always whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        line = json.dumps({"step": step, **{k: finite(v) for k, v in metrics.items()}})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def truncate_after(self, step: int) -> str | None:
        """Drop lines of later steps: a resumed run writes them again; a note of damaged ones."""
        if not os.path.lexists(self.path):  # a link that leads nowhere gives way to a file
            return None
        lines, damaged = self._lines()
        self._replace([line for line in lines if line["step"] <= step])
        return f"{damaged} lines of {self.path} could not be read: left out" if damaged else None

    def write_evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append an evaluation of that step, in place of one that a killed run wrote of it."""
        lines, _ = self._lines()
        of_step = [line for line in lines if line["step"] == step]
        before = [line for line in of_step if line.keys() & metrics.keys()]
        if before:
            before[-1].update({key: finite(value) for key, value in metrics.items()})
            self._replace(lines)
        else:
            self.write(step, metrics)

    def _lines(self) -> tuple[list[dict[str, Any]], int]:
        """All that can be read, and how many others there are but the half line of a killed run."""
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        *whole, half = text.split("\n")
        records = [_record(line) for line in whole if line]
        lines = [record for record in records if record is not None]
        last = _record(half)
        return [*lines, *([] if last is None else [last])], len(records) - len(lines)

    def _replace(self, lines: Iterable[Mapping[str, Any]]) -> None:
        write(self.path, "".join(json.dumps(line) + "\n" for line in lines))


def _record(line: str) -> dict[str, Any] | None:
    """A line of metrics; None for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_line = isinstance(record, dict) and type(record.get("step")) is int
    return record if is_line else None


def write_samples(path: Path, samples: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object a line; completions that are images become PNGs in a folder of that name."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path.parent)) from error
    folder = path.with_suffix("")
    remove(folder)  # the images of an evaluation that is written anew
    plain = (_with_its_image(sample, folder) for sample in samples)
    write(path, "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in plain))


def read_samples(path: Path) -> list[dict[str, Any]]:
    """What `write_samples` wrote; nothing where there is no such file.

    Raises ValueError where it is damaged.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        samples = [json.loads(line) for line in lines if line]
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {reason(error)}") from error
    if not all(isinstance(sample, dict) for sample in samples):
        raise ValueError(f"{path} is damaged: expected an object in every line")
    return samples


def _with_its_image(sample: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The sample with its image saved and named, by a path from the run's folder on."""
    save = getattr(sample["completion"], "save", None)
    if not callable(save):
        return sample
    folder.mkdir(exist_ok=True)
    way = "_greedy" if sample["greedy"] else ""
    path = folder / f"{sample['draw']:04d}_{sample['index']}{way}.png"
    save(path)
    return {**sample, "completion": "", "image": path.relative_to(folder.parents[1]).as_posix()}


def brief(metrics: Mapping[str, float]) -> str:
    """An evaluation in a line: accuracy where a reward tells right from wrong, else the reward."""
    leading = "reward" if math.isnan(metrics.get("accuracy", math.nan)) else "accuracy"
    watched = {n.removeprefix("watch/"): v for n, v in metrics.items() if n.startswith("watch/")}
    shown = {
        leading: metrics.get(leading),
        "greedy": metrics.get(f"greedy_{leading}"),
        "length": metrics.get("length"),
        **watched,
    }
    words = [f"{k} {v:.3g}" for k, v in shown.items() if v is not None and not math.isnan(v)]
    prompts = f"{metrics.get('prompts', 0):.0f} held-out prompts"
    distinct = metrics.get("distinct_prompts")
    different = f", {distinct:.0f} different" if distinct is not None else ""
    return f"{'  '.join(words)}  ({prompts}{different})"


def finite(value: Any) -> Any:
    """JSON has no NaN: null instead; floats at six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def as_json(record: Mapping[str, Any]) -> str:
    """A record, sections within it included, as JSON that a person can read."""

    def clean(value: Any) -> Any:
        inner = isinstance(value, Mapping)
        return {k: clean(v) for k, v in value.items()} if inner else finite(value)

    return json.dumps(clean(record), indent=2) + "\n"


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
        # A label with brackets in it is no markup.
        self.console.print(message, highlight=False, markup=False)

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        accuracy = metrics.get("accuracy", math.nan)
        right = "" if math.isnan(accuracy) else f"accuracy {accuracy:.2f}  "
        speed = f"{metrics['decisions_per_second']:,.0f} {self.unit}/s"
        reward = metrics["reward"]
        form = ".3f" if abs(reward) < 1e6 else ".3g"  # 1e300 has three hundred digits
        summary = f"reward {reward:{form}}  {right}{speed}"
        self._progress.update(self._task, completed=step, summary=summary)
        every = max(1, self._steps // 20)
        if not self.console.is_terminal and (step % every == 0 or step == self._steps):
            self.say(f"step {step}/{self._steps}  {summary}")
        evaluation = {
            name.removeprefix("evaluation/"): value
            for name, value in metrics.items()
            if name.startswith("evaluation/")
        }
        if evaluation:
            self.say(f"step {step}: {brief(evaluation)}")
