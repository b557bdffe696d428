"""Tracking: all trackers of a run, as a callback; a failing tracker never ends the run."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groupwise import secrets
from groupwise.callback import Callback
from groupwise.config.load import LoadedConfig
from groupwise.config.tracking import TrackerSection
from groupwise.errors import UserError, first_line
from groupwise.evaluation import Evaluation
from groupwise.storage.disk import read_record, write
from groupwise.storage.facts import written
from groupwise.tracking.mlflow import MLflow
from groupwise.tracking.samples import numbers, shown
from groupwise.tracking.swanlab import SwanLab
from groupwise.tracking.tensorboard import TensorBoard
from groupwise.tracking.tracker import Opening, Tracker
from groupwise.tracking.trackio import Trackio
from groupwise.tracking.wandb import Wandb

CLASSES: Mapping[str, type[Tracker]] = {
    each.name: each for each in (Wandb, TensorBoard, Trackio, MLflow, SwanLab)
}
IDENTITIES = "tracking.json"
"""The file with the identity of each tracker's run, to continue it when this run is resumed."""
FAILURES = 3
"""After so many failures in a row a tracker is removed, since each may wait for a time limit."""


def check_trackers(loaded: LoadedConfig) -> None:
    """Raise UserError for a tracker that is named twice, not installed, or not offline."""
    names: set[str] = set()
    for number, section in enumerate(loaded.config.tracking):
        problem = _problem(section, names)
        if problem is not None:
            raise UserError(loaded.origin.message(("tracking", number), problem))
        names.add(section.name)


def _problem(section: TrackerSection, names: set[str]) -> str | None:
    name, tracker = section.name, CLASSES[section.name]
    if name in names:
        return f"{name} is named twice; leave out one of them"
    if not tracker.is_installed():
        return f"{name} is not installed: pip install 'groupwise[{name}]'"
    for path, problem in secrets.problems(section.options):
        return f"{'.'.join(map(str, path))}: {problem}"
    if section.offline and (remote := [key for key in tracker.remote if key in section.options]):
        return f"offline sends nothing to a server, and {', '.join(remote)} names one; set only one"
    return None


class Tracking(Callback):
    """Sends metrics and completions of a run to its trackers; their failures never end the run.

    warn: called with a sentence when a tracker fails for the first time, and when it is removed.
    """

    def __init__(self, loaded: LoadedConfig, folder: Path, *, warn: Callable[[str], None]) -> None:
        self.loaded, self.folder, self.warn = loaded, folder, warn
        self.trackers: list[Tracker] = []
        self._in_a_row: Counter[str] = Counter()
        self._warned: set[str] = set()
        self._evaluated: Mapping[str, float] = {}

    def open(self, step: int) -> None:
        """Open every tracker; step: steps done so far, 0 in a new run.

        Raises UserError if one cannot be opened: before the first step nothing is lost by that.
        """
        identities = _read(self.folder / IDENTITIES) if step else {}
        settings = {k: v for k, v in written(self.loaded.config).items() if v is not None}
        for number, section in enumerate(self.loaded.config.tracking):
            tracker = CLASSES[section.name](section)
            opening = Opening(
                folder=self.folder,
                settings=settings,
                step=step,
                identity=identities.get(section.name, {}),
            )
            try:
                tracker.open(opening)
            except Exception as error:
                problem = f"{section.name} could not be opened: {first_line(error)}"
                raise UserError(
                    self.loaded.origin.message(("tracking", number), problem)
                ) from error
            self.trackers.append(tracker)
            identities = {**identities, section.name: tracker.identity}
        if self.trackers:
            write(self.folder / IDENTITIES, json.dumps(identities, indent=2) + "\n")

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        # A step's metrics repeat those of its evaluation, which have been sent already.
        new = {key: value for key, value in metrics.items() if key not in self._evaluated}
        self._evaluated = {}
        self._each(step, lambda tracker: tracker.log(numbers(new), step))

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        self._evaluated = evaluation.logged

        def send(tracker: Tracker) -> None:
            tracker.log(numbers(evaluation.logged), step)
            table = shown(evaluation.samples, tracker.section.samples)
            if table.rows:
                tracker.show(table, step)

        self._each(step, send)

    def close(self) -> None:
        """End the trackers' runs; this may wait until everything is sent."""
        self._each(None, lambda tracker: tracker.close())
        self.trackers = []

    def _each(self, step: int | None, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self.trackers):
            try:
                call(tracker)
            except Exception as error:  # of the network, or of the tracker's package
                self._failed(tracker, "at its end" if step is None else f"at step {step}", error)
            else:
                self._in_a_row[tracker.name] = 0

    def _failed(self, tracker: Tracker, when: str, error: Exception) -> None:
        name = tracker.name
        self._in_a_row[name] += 1
        if name not in self._warned:
            self._warned.add(name)
            reason = secrets.redacted(first_line(error))
            self.warn(
                f"warning: tracker {name} failed {when}: {reason}; the run goes on, and "
                f"metrics.jsonl has what {name} lacks"
            )
        if self._in_a_row[name] == FAILURES:
            self.trackers.remove(tracker)
            self.warn(f"warning: tracker {name} failed {FAILURES} times in a row and is left off")


def _read(path: Path) -> Mapping[str, Any]:
    """The identities written at the first start of a resumed run; {} if the file is missing."""
    try:
        return read_record(path)
    except ValueError:
        return {}
