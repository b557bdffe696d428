"""Console: a run on the terminal: what it is doing, one line per evaluation, notes and warnings."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from rich.console import Console as Terminal

from groupwise.callback import RunContext
from groupwise.display import Display
from groupwise.evaluation import Evaluation
from groupwise.kit.metric_names import Family
from groupwise.kit.terminal import printable
from groupwise_console.evaluations import brief, changes
from groupwise_console.step_line import StepLine
from groupwise_console.time_left import TimeLeft
from groupwise_console.watchers import LogWatcher, NotebookWatcher, TerminalWatcher, Watcher

WIDTH = 100
"""Columns of a line where there is no terminal."""


def _watcher(terminal: Terminal, line: StepLine) -> Watcher:
    if terminal.is_jupyter:
        return NotebookWatcher(terminal, line)
    return (TerminalWatcher if terminal.is_terminal else LogWatcher)(terminal, line)


class Console(Display):
    """What a run shows while it goes on, in lines of 100 columns.

    On a terminal two lines that change, the last step and what goes on now, which are gone after
    the end. In a notebook the same two lines, in the cell's output. Otherwise lines of a log: one
    every twentieth of the steps, phases before the first step that take long, and now and then
    what a long step is doing.
    """

    _left: TimeLeft

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self.terminal = Terminal(stderr=True, quiet=quiet)
        self._last = StepLine()
        self._accuracy: str | None = None
        self._watcher = _watcher(self.terminal, self._last)

    def begin(
        self, run: RunContext, *, unit: str, labels: Collection[str], accuracy: str | None
    ) -> None:
        """The rewards of several policies are shown after the reward of all, if there is room."""
        self._accuracy = accuracy
        self._left = TimeLeft(run.settings)
        self._last.begin(
            steps=run.settings["train.steps"],
            unit=unit,
            done=run.step,
            labels=labels if len(labels) > 1 else (),
            width=self.terminal.width if self.terminal.is_terminal else WIDTH,
            accuracy=accuracy,
        )

    def silence(self) -> None:
        super().silence()
        self._watcher.stop()
        self.terminal.quiet = True

    def __enter__(self) -> Self:
        if not self.quiet:
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._watcher.stop()
        yield
        if not self.quiet:
            self._watcher.start()

    def say(self, message: str) -> None:
        # markup=False: brackets are plain text; soft_wrap: in a file a line stays a line.
        piped = not self.terminal.is_terminal
        self.terminal.print(printable(message), highlight=False, markup=False, soft_wrap=piped)
        self._watcher.said()

    def step(
        self, step: int, metrics: Mapping[str, Any], *, seconds: float, elapsed: float
    ) -> None:
        evaluated = metrics.get(f"{Family.TIME}/evaluate", 0.0)
        left = self._left.after(step, seconds - evaluated, elapsed=elapsed, evaluation=evaluated)
        line = self._last
        line.step(step, metrics, left)
        every = max(1, line.steps // 20)
        if self._watcher.logs and (step % every == 0 or step == line.steps):
            self.say(str(line))
        evaluation = Family.EVALUATION.of(metrics)
        if evaluation:
            self.say(f"step {step}: {brief(evaluation, self._accuracy)}")

    def evaluation(self, when: str, evaluation: Evaluation) -> None:
        self._left.evaluation = evaluation.seconds or 0.0
        if evaluation.metrics:
            self.say(f"{when}: {brief(evaluation.metrics, self._accuracy)}")

    def changes(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        if changed := changes(before, after, self._accuracy):
            self.say(f"changed: {changed}")
