"""Tracker: the base class of trackers, each with accelerate's tracker of the same name."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from groupwise import Callback
from groupwise.callback import RunContext
from groupwise.evaluation import Evaluation, Sample
from groupwise.kit import secrets
from groupwise.kit.errors import UserError, first_line
from groupwise_trackers.samples import SampleTable, numbers, of_training, shown
from groupwise_trackers.settings import Settings

IDENTITIES = "tracking.json"
"""The file with the identity of each tracker's run, to continue it when this run is resumed."""
FAILURES = 3
"""After so many failures in a row a tracker is left off, since each may wait for a time limit."""


class Tracker(Callback, ABC):
    """Opens accelerate's tracker and sends metrics and completions to it.

    If it cannot be opened, the run ends before its first step. Later failures never end the run.
    """

    def __init__(self, config: Settings) -> None:
        self.config = config
        self.tracker: Any = None
        self._evaluated: Mapping[str, float] = {}
        self._warned = False
        self._in_a_row = 0

    @property
    def name(self) -> str:
        return self.config.tracker

    # ---- one tracker

    @abstractmethod
    def arguments(self, run: RunContext, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of accelerate's class; the section's own options replace those of their name.

        What accelerate calls `run_name` is the project.

        identity: `Tracker.identity` from when this run was first tracked, empty if it never was.
        """

    def open(self, run: RunContext, identity: Mapping[str, Any]) -> None:
        """Start the tracker's run, or continue the one of the identity."""
        arguments = {**self.arguments(run, identity), **self.options}
        self.tracker = LOGGER_TYPE_TO_CLASS[self.name](**arguments)
        self.tracker.start()

    @property
    def options(self) -> dict[str, Any]:
        """The section's options for the tracker's own init function."""
        return self.config.options

    @property
    def identity(self) -> dict[str, Any]:
        """The arguments that continue this run of the tracker after a resume, as JSON."""
        return {}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.tracker.log(dict(metrics), step=step)

    @abstractmethod
    def show(self, shown: SampleTable, step: int) -> None:
        """Log completions of an evaluation or of a training step, under names that begin with the
        table's `prefix`; the table has at least one row."""

    def run_name(self, run: RunContext) -> str:
        return self.config.run or run.folder.name

    # ---- as a callback

    def on_open(self, run: RunContext) -> None:
        """Raises UserError if it cannot be opened: before the first step, nothing is lost."""
        self._say, file = run.say, run.folder / IDENTITIES
        identities = _read(file)
        try:
            self.open(run, identities.get(self.name, {}) if run.step else {})
            file.write_text(json.dumps({**identities, self.name: self.identity}, indent=2) + "\n")
        except Exception as error:
            raise UserError(f"{self.name} could not be opened: {first_line(error)}") from error

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        # A step's metrics repeat those of its evaluation, which have been sent already.
        new = {key: value for key, value in metrics.items() if key not in self._evaluated}
        self._evaluated = {}
        self._try(f"at step {step}", lambda: self.log(numbers(new), step))

    def on_samples(self, step: int, samples: Sequence[Sample]) -> None:
        every = self.config.training_samples
        if every and (step == 1 or step % every == 0):
            self._try(f"at step {step}", lambda: self.show(of_training(samples), step))

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        self._evaluated = evaluation.logged

        def send() -> None:
            self.log(numbers(evaluation.logged), step)
            table = shown(evaluation.samples, self.config.samples)
            if table.rows:
                self.show(table, step)

        self._try(f"at step {step}", send)

    def on_close(self) -> None:
        """End the tracker's run; this may wait until everything is sent."""
        self._try("at its end", self.tracker.finish)

    def _try(self, when: str, send: Callable[[], None]) -> None:
        if self._in_a_row == FAILURES:
            return
        try:
            send()
        except Exception as error:  # of the network, or of the tracker's package
            self._in_a_row += 1
            self._warn(when, error)
        else:
            self._in_a_row = 0

    def _warn(self, when: str, error: Exception) -> None:
        """A warning when it fails for the first time, and when it is left off."""
        if not self._warned:
            self._warned = True
            reason = secrets.redacted(first_line(error))
            self._say(
                f"warning: tracker {self.name} failed {when}: {reason}; the run goes on, and "
                f"metrics.jsonl has what {self.name} lacks"
            )
        if self._in_a_row == FAILURES:
            self._say(
                f"warning: tracker {self.name} failed {FAILURES} times in a row and is left off"
            )


def _read(file: Path) -> dict[str, Any]:
    """The identities of the trackers that were opened before, by name; {} if there are none."""
    try:
        identities = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return identities if isinstance(identities, dict) else {}
