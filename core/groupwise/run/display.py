"""Display: a run on the terminal: progress, one line per evaluation, notes and warnings."""

import math
from collections import deque
from collections.abc import Collection, Mapping
from statistics import fmean
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from groupwise.config.sections import RunConfig
from groupwise.metric_names import JUDGED, Family, titled

WIDTH = 100
"""Columns of a line where there is no terminal."""
SUMMARY = 62
"""Columns of all but the bar: reward, accuracy, speed and time left."""
SHOWN = 5e-4
"""The smallest change of a mean that is shown."""
LAST = 10
"""Steps whose mean time is used: enough against noise, few enough to follow growing completions."""


def brief(metrics: Mapping[str, float], accuracy: str | None = None) -> str:
    """An evaluation in one line: accuracy if a reward tells right from wrong, and the reward.

    accuracy: the name of that reward.
    """
    leading = "reward" if math.isnan(metrics.get("accuracy", math.nan)) else "accuracy"
    watched = Family.WATCH.of(metrics)
    each = {n.partition("/")[2]: v for n, v in metrics.items() if n.startswith(f"{leading}/")}
    shown = {
        titled(leading, accuracy): metrics.get(leading),
        "greedy": metrics.get(f"greedy_{leading}"),
        "reward": metrics.get("reward"),
        "length": metrics.get("length"),
        **{n: v for n, v in Family.ENVIRONMENT.of(metrics).items() if n in ("turns", "calls")},
        "failed": metrics.get("failed"),
        **watched,
    }
    words = [f"{k} {v:.3g}" for k, v in shown.items() if v is not None and not math.isnan(v)]
    if each and words and words[0].startswith(leading):
        words[0] += f" ({_listed(each)})"
    prompts = f"{metrics.get('prompts', 0):.0f} held-out prompts"
    distinct = metrics.get("distinct_prompts")
    different = f", {distinct:.0f} different" if distinct is not None else ""
    return f"{'  '.join(words)}  ({prompts}{different})"


def changes(
    before: Mapping[str, float], after: Mapping[str, float], accuracy: str | None = None
) -> str:
    """What changed between two evaluations, the largest rise first; "" if nothing is in both.

    accuracy: the name of the reward that tells right from wrong.
    """
    each = [name for name in after if name.startswith(f"{Family.REWARDS}/")]
    watched = [name for name in after if name.startswith(f"{Family.WATCH}/")]
    names = ["reward", *JUDGED, *(each if len(each) > 1 else ()), *watched]
    values = [(name, before.get(name), after.get(name)) for name in names]
    known = [(n, was, now) for n, was, now in values if was is not None and now is not None]
    known = [(n, was, now) for n, was, now in known if abs(now - was) >= SHOWN]  # not NaN
    known.sort(key=lambda change: change[1] - change[2])
    return ", ".join(f"{titled(name, accuracy)} {was:.3g} -> {now:.3g}" for name, was, now in known)


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {value:{_form(value)}}" for label, value in values.items())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _form(value: float) -> str:
    return ".3f" if abs(value) < 1e6 else ".3g"  # .3f of 1e300 has 300 digits


class Display:
    """A run's progress: step, reward, accuracy, speed and time left, in a line of 100 columns.

    On a terminal a single line that changes; otherwise a new line every twentieth of the steps.

    labels: of several policies; their rewards are shown after the reward of all, if there is room;
    accuracy: the reward that tells right from wrong, None if there is none.
    """

    def __init__(
        self,
        *,
        steps: int,
        unit: str,
        quiet: bool,
        done: int = 0,
        labels: Collection[str] = (),
        accuracy: str | None = None,
    ) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self.unit, self.labels, self.accuracy = unit, labels, accuracy
        width = self.console.width if self.console.is_terminal else WIDTH
        self._room = width - len(f"step {steps}/{steps}  ")
        # Without a bar if the line is too short for it, or shows several rewards.
        spare = 0 if labels else min(self._room - SUMMARY - len(accuracy or "") - 4, 24)
        bar = [BarColumn(bar_width=spare)] if spare >= 4 else []
        self._progress = Progress(
            TextColumn("[bold]step {task.completed:.0f}/{task.total:.0f}"),
            *bar,
            TextColumn("{task.fields[summary]}"),
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
        # markup=False: brackets are plain text; soft_wrap: in a file a line stays a line.
        piped = not self.console.is_terminal
        self.console.print(message, highlight=False, markup=False, soft_wrap=piped)

    def step(self, step: int, metrics: Mapping[str, Any], *, left: float) -> None:
        """Show a finished step; left: seconds until the run ends."""
        summary = self._summary(metrics, left)
        self._progress.update(self._task, completed=step, summary=summary)
        every = max(1, self._steps // 20)
        if not self.console.is_terminal and (step % every == 0 or step == self._steps):
            self.say(f"step {step}/{self._steps}  {summary}")
        evaluation = Family.EVALUATION.of(metrics)
        if evaluation:
            self.say(f"step {step}: {brief(evaluation, self.accuracy)}")

    def _summary(self, metrics: Mapping[str, Any], left: float) -> str:
        accuracy = metrics.get("accuracy", math.nan)
        reward = f"reward {metrics['reward']:{_form(metrics['reward'])}}"
        own = {n: metrics[f"{n}/reward"] for n in self.labels if f"{n}/reward" in metrics}
        parts = [
            "" if math.isnan(accuracy) else f"{titled('accuracy', self.accuracy)} {accuracy:.2f}",
            f"{failed:.0f} failed" if (failed := metrics.get("failed", 0)) else "",
            f"{metrics['decisions_per_second']:,.0f} {self.unit}/s",
            f"left {_clock(left)}",
        ]
        rest = "  ".join(filter(None, parts))
        whole = f"{reward} ({_listed(own)})  {rest}"
        return whole if own and len(whole) <= self._room else f"{reward}  {rest}"


class TimeLeft:
    """The remaining seconds after a step:

        remaining steps * mean time of the last steps
            + remaining evaluations * time of the last evaluation

    Steps and the evaluations between them are limited by `train.minutes`. Before the first
    evaluation of this process (a resumed run starts without one) evaluations count as 0 seconds.
    """

    def __init__(self, config: RunConfig) -> None:
        self.steps, self.every = config.train.steps, config.evaluation.every
        self.limit = config.train.minutes
        self.last: deque[float] = deque(maxlen=LAST)
        self.evaluation = 0.0

    def after(self, step: int, seconds: float, *, elapsed: float, evaluation: float = 0.0) -> float:
        """The seconds left after a step that took `seconds`, and an evaluation after it.

        elapsed: seconds that count for the limit `train.minutes`; evaluation: seconds, 0 if the
        step was not evaluated.
        """
        self.last.append(seconds)
        self.evaluation = evaluation or self.evaluation
        evaluations = (self.steps - 1) // self.every - step // self.every if self.every else 0
        left = (self.steps - step) * fmean(self.last) + max(evaluations, 0) * self.evaluation
        if self.limit is not None:
            left = min(left, 60 * self.limit - elapsed)
        return max(left, 0.0) + self.evaluation
