"""Display: a run on the terminal: progress, one line per evaluation, notes and warnings."""

import math
from collections.abc import Collection, Mapping
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


def brief(metrics: Mapping[str, float]) -> str:
    """An evaluation in one line: accuracy if a reward tells right from wrong, else the reward."""
    leading = "reward" if math.isnan(metrics.get("accuracy", math.nan)) else "accuracy"
    watched = {n.removeprefix("watch/"): v for n, v in metrics.items() if n.startswith("watch/")}
    each = {n.partition("/")[2]: v for n, v in metrics.items() if n.startswith(f"{leading}/")}
    shown = {
        leading: metrics.get(leading),
        "greedy": metrics.get(f"greedy_{leading}"),
        "length": metrics.get("length"),
        **watched,
    }
    words = [f"{k} {v:.3g}" for k, v in shown.items() if v is not None and not math.isnan(v)]
    if each and words:
        words[0] += f" ({_listed(each)})"
    prompts = f"{metrics.get('prompts', 0):.0f} held-out prompts"
    distinct = metrics.get("distinct_prompts")
    different = f", {distinct:.0f} different" if distinct is not None else ""
    return f"{'  '.join(words)}  ({prompts}{different})"


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {value:{_form(value)}}" for label, value in values.items())


def _form(value: float) -> str:
    return ".3f" if abs(value) < 1e6 else ".3g"  # .3f of 1e300 has 300 digits


class Display:
    """The progress bar: step, reward, accuracy, tokens per second, time left.

    labels: of several policies, whose own rewards are shown beside the mean.
    """

    def __init__(
        self, *, steps: int, unit: str, quiet: bool, done: int = 0, labels: Collection[str] = ()
    ) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self.unit, self.labels = unit, labels
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
        # markup=False: brackets in a label are plain text.
        self.console.print(message, highlight=False, markup=False)

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        accuracy = metrics.get("accuracy", math.nan)
        right = "" if math.isnan(accuracy) else f"accuracy {accuracy:.2f}  "
        speed = f"{metrics['decisions_per_second']:,.0f} {self.unit}/s"
        reward = metrics["reward"]
        own = {n: metrics[f"{n}/reward"] for n in self.labels if f"{n}/reward" in metrics}
        each = f" ({_listed(own)})" if own else ""
        summary = f"reward {reward:{_form(reward)}}{each}  {right}{speed}"
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
