"""Callback: watch a run without changing it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from groupwise.evaluation import Evaluation, Sample
from groupwise.policy import Policy


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The facts about a run that a callback may need.

    folder: the run's, absolute; settings: its configuration by dotted key, secrets masked; step:
    steps done so far, 0 in a new run; say: shows a line to the user.
    """

    folder: Path
    settings: Mapping[str, Any]
    step: int
    say: Callable[[str], None]


class Callback:
    """Override the methods that you need. An exception in a callback stops the run.

    What they receive are copies: a change of them changes neither the run nor its files.

    files: names of the files and folders that it writes into the run's folder. They belong to the
    run, and are replaced with it.
    """

    files: ClassVar[tuple[str, ...]] = ()

    def on_open(self, run: RunContext) -> None:
        """Called when all is loaded, before anything is sampled.

        A UserError is shown with the line of the configuration that names the callback.
        """

    def on_start(self, policy: Policy) -> None:
        """Called before the first evaluation; in a run of several policies, once for each."""

    def on_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Called after a step, before `on_step`, with some of its completions: those that
        samples/training.jsonl gets, with images as policies returned them. Not called for steps
        without any."""

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Called after each step, with the metrics that metrics.jsonl gets."""

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Called after each evaluation, first and last too, with its metrics and completions."""

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Called after the last evaluation, with the content of result.json."""

    def on_close(self) -> None:
        """Called when the run ends, also by an error, if `on_open` returned."""
