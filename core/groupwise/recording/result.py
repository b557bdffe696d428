"""RunResult: what `train` returns."""

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.evaluation import Alarm
from groupwise.kit.errors import UserError
from groupwise.kit.metric_names import JUDGED
from groupwise.policy import Policy
from groupwise.recording.table import Table, table_of
from groupwise.storage.files import AFTER, BEFORE, METRICS, TRAINING
from groupwise.storage.metrics import MetricsFile
from groupwise.storage.samples import read_samples, with_completions

PLOTTED = ("reward", "accuracy", "evaluation/reward", "evaluation/accuracy", "length")
"""Metrics that `plot` draws unless others are named, those of them that the run has."""


class Metrics(dict[str, float]):
    """The metrics of an evaluation by name; the error of a missing one says which there are."""

    def __missing__(self, name: str) -> float:
        why = "the run has no evaluation of held-out prompts here"
        if self:
            why = f"there are {', '.join(self)}"
        if self and name in JUDGED:
            why = f"evaluation.accuracy names the reward that says what is right; {why}"
        raise KeyError(f"no metric {name!r}: {why}")


@dataclass(frozen=True, kw_only=True, repr=False)
class RunResult:
    """The result of a run: metrics on held-out prompts before and after, the folder, the policies.

    What it reads from the folder's files (`metrics`, `samples`, `training_samples`) is read at each
    use.

    accuracy: the reward whose share of right completions is the accuracy, None if there is none;
    policies: by label, `policy` if there is only one, with the weights that were saved (with
    `train.ema` the average); alarms: by watched reward, those raised at
    the last evaluation.
    """

    before: Metrics
    after: Metrics
    steps: int
    seconds: float
    folder: Path
    policies: Mapping[str, Policy]
    accuracy: str | None = None
    interrupted: bool = False
    alarms: Mapping[str, Alarm] = field(default_factory=dict)

    @property
    def policy(self) -> Policy:
        """The only policy of the run. Raises UserError if there are several: see `policies`."""
        if len(self.policies) > 1:
            names = ", ".join(f"policies[{label!r}]" for label in self.policies)
            raise UserError(f"this run has several policies: {names}")
        (policy,) = self.policies.values()
        return policy

    @property
    def metrics(self) -> Table:
        """A row for each step, as in metrics.jsonl; step 0 is the first evaluation."""
        return Table(MetricsFile(self.folder / METRICS).read())

    @property
    def samples(self) -> Table:
        """The completions of the evaluation after the last step, with images opened."""
        return self._read(self.folder / AFTER)

    @property
    def samples_before(self) -> Table:
        """The same of the evaluation before the first step."""
        return self._read(self.folder / BEFORE)

    @property
    def training_samples(self) -> Table:
        """The completions of training steps that were kept, with their rewards and advantages."""
        return self._read(self.folder / TRAINING)

    def _read(self, path: Path) -> Table:
        return Table(with_completions(read_samples(path), self.folder))

    def plot(self, *names: str) -> Any:
        """Metrics over the steps, one chart for each name, as a figure of matplotlib, which a
        notebook shows.

        Raises UserError for a name that no step has, and where matplotlib is not installed.
        """
        metrics = self.metrics
        names = names or tuple(name for name in PLOTTED if name in metrics.columns)
        if unknown := [name for name in names if name not in metrics.columns]:
            raise UserError(f"no metric {unknown[0]!r}; there are {', '.join(metrics.columns)}")
        try:
            from groupwise.recording.figure import ShownFigure
        except ImportError as error:
            raise UserError(f"plot needs matplotlib: pip install matplotlib ({error})") from error
        figure = ShownFigure(figsize=(3.6 * max(1, len(names)), 2.8), layout="constrained")
        for number, name in enumerate(names, start=1):
            axes = figure.add_subplot(1, len(names), number)
            points = [(row["step"], row[name]) for row in metrics if row.get(name) is not None]
            axes.plot(*zip(*points, strict=True), marker="." if len(points) < 30 else "")
            axes.set(title=name, xlabel="step")
        return figure

    def _changes(self) -> dict[str, tuple[float | None, float | None]]:
        """By metric of the evaluations, its value before and after."""
        names = dict.fromkeys([*self.before, *self.after])
        return {name: (self.before.get(name), self.after.get(name)) for name in names}

    def __repr__(self) -> str:
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        each = [
            f"{name} {_said(was)} -> {_said(now)}"
            for name, (was, now) in self._changes().items()
            if name in ("accuracy", "reward")
        ]
        stopped = ["interrupted"] if self.interrupted else []
        return f"<RunResult of {', '.join([steps, *stopped, *each])}, in {self.folder}>"

    def _repr_html_(self) -> str:
        rows = [[name, was, now] for name, (was, now) in self._changes().items()]
        evaluated = table_of(["held-out prompts", "before", "after"], rows) if rows else ""
        alarms = "".join(f"<p>{html.escape(str(alarm))}</p>" for alarm in self.alarms.values())
        return f"<p>{html.escape(repr(self))}</p>{evaluated}{alarms}"


def _said(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
