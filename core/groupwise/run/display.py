"""Display: a run on the terminal: progress, evaluations in a line, notes and warnings."""

import math
from collections.abc import Mapping
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
