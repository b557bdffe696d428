"""Display: a run on the terminal: what it is doing, one line per evaluation, notes and warnings."""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from rich.console import Console

from groupwise.kit.metric_names import JUDGED, Family, titled
from groupwise.kit.terminal import printable
from groupwise.recording.step_line import StepLine, listed
from groupwise.recording.watchers import LogWatcher, NotebookWatcher, TerminalWatcher, Watcher

WIDTH = 100
"""Columns of a line where there is no terminal."""
SHOWN = 5e-4
"""The smallest change of a mean that is shown."""


def _watcher(console: Console, line: StepLine) -> Watcher:
    if console.is_jupyter:
        return NotebookWatcher(console, line)
    return (TerminalWatcher if console.is_terminal else LogWatcher)(console, line)


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
        words[0] += f" ({listed(each)})"
    prompts = f"{metrics.get('prompts', 0):.0f} held-out prompts"
    distinct = metrics.get("distinct_prompts")
    different = f", {distinct:.0f} different" if distinct is not None else ""
    return f"{'  '.join(words)}  ({prompts}{different})"


def changes(
    before: Mapping[str, float], after: Mapping[str, float], accuracy: str | None = None
) -> str:
    """What changed between two evaluations, the largest rise first; "" if nothing is in both.

    With shares of right completions, how exactly their prompts can tell them.

    accuracy: the name of the reward that tells right from wrong.
    """
    each = [name for name in after if name.startswith(f"{Family.REWARDS}/")]
    several, judging = len(each) > 1, f"{Family.REWARDS}/{accuracy}"
    if all(side.get(judging) == side.get("accuracy") for side in (before, after)):
        each = [name for name in each if name != judging]  # it is the accuracy
    watched = [name for name in after if name.startswith(f"{Family.WATCH}/")]
    names = ["reward", *JUDGED, *(each if several else ()), *watched]
    values = [(name, before.get(name), after.get(name)) for name in names]
    known = [(n, was, now) for n, was, now in values if was is not None and now is not None]
    known = [(n, was, now) for n, was, now in known if abs(now - was) >= SHOWN]  # not NaN
    known.sort(key=lambda change: change[1] - change[2])
    text = ", ".join(f"{titled(name, accuracy)} {was:.3g} -> {now:.3g}" for name, was, now in known)
    prompts = after.get("prompts")
    if not prompts or not any(name in JUDGED for name, *_ in known):
        return text
    error = largest_error(prompts)
    return f"{text} ({prompts:.0f} prompts: standard error of an accuracy up to {error:.2g})"


def largest_error(prompts: float) -> float:
    """The standard error sqrt(p (1 - p) / n) of a share p of n prompts, for the p where it is
    largest: 1 / (2 sqrt(n))."""
    return 0.5 / math.sqrt(prompts)


class Display:
    """What a run shows while it goes on, in lines of 100 columns.

    On a terminal two lines that change, the last step and what goes on now, which are gone after
    the end. In a notebook the same two lines, in the cell's output. Otherwise lines of a log: one
    every twentieth of the steps, phases before the first step that take long, and now and then
    what a long step is doing.

    quiet: nothing is shown; other processes than the first are.
    """

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self._quiet, self._last = quiet, StepLine()
        self.accuracy: str | None = None
        self._watcher = _watcher(self.console, self._last)

    def begin(
        self,
        *,
        steps: int,
        unit: str,
        done: int = 0,
        labels: Collection[str] = (),
        accuracy: str | None = None,
    ) -> None:
        """The run has loaded: it has so many steps, of which some are done.

        labels: of several policies; their rewards are shown after the reward of all, if there is
        room; accuracy: the reward that tells right from wrong, None if there is none.
        """
        self.accuracy = accuracy
        width = self.console.width if self.console.is_terminal else WIDTH
        self._last.begin(
            steps=steps, unit=unit, done=done, labels=labels, width=width, accuracy=accuracy
        )

    def silence(self) -> None:
        """Show nothing more: this is not the first process."""
        self._watcher.stop()
        self._quiet = self.console.quiet = True

    def __enter__(self) -> Self:
        if not self._quiet:
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which others print to the terminal."""
        self._watcher.stop()
        yield
        if not self._quiet:
            self._watcher.start()

    def say(self, message: str) -> None:
        # markup=False: brackets are plain text; soft_wrap: in a file a line stays a line.
        piped = not self.console.is_terminal
        self.console.print(printable(message), highlight=False, markup=False, soft_wrap=piped)
        self._watcher.said()

    def step(self, step: int, metrics: Mapping[str, Any], *, left: float) -> None:
        """Show a finished step; left: seconds until the run ends."""
        line = self._last
        line.step(step, metrics, left)
        every = max(1, line.steps // 20)
        if self._watcher.logs and (step % every == 0 or step == line.steps):
            self.say(str(line))
        evaluation = Family.EVALUATION.of(metrics)
        if evaluation:
            self.say(f"step {step}: {brief(evaluation, self.accuracy)}")
