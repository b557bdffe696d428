"""Recorder: what a run writes besides checkpoints and models, prints, and passes to callbacks."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from groupwise.building.reports import Report
from groupwise.callback import Callback
from groupwise.display import Display
from groupwise.evaluation import Alarm, Evaluation, Sample
from groupwise.kit import processes, progress
from groupwise.kit.copies import copied
from groupwise.kit.errors import UserError
from groupwise.kit.metric_names import Family
from groupwise.learning.trainer import Trainer, unit
from groupwise.recording.card import write_cards
from groupwise.recording.result import RunResult
from groupwise.recording.symptoms import Symptoms, warnings_of_step
from groupwise.storage import disk
from groupwise.storage.files import (
    AFTER,
    BEFORE,
    BEFORE_METRICS,
    METRICS,
    MODEL,
    RESULT,
    TRAINING,
)
from groupwise.storage.metrics import MetricsFile, as_json, finite
from groupwise.storage.run_folder import RunFolder
from groupwise.storage.run_info import write_config
from groupwise.storage.samples import read_samples, with_completions, write_samples
from groupwise.storage.training_samples import TrainingSamples

SAMPLED = ("reward", "length", "truncated")
"""Metrics that tell whether a resumed run samples what it did before."""


class CollapsedError(UserError):
    """A run ended because a metric left its own past; what it learned since is not saved."""


class Recorder:
    """The files of a run, if this process `writes` them; its lines on the terminal; callbacks.

    former_config: a name for the run's older configuration, which a resumed run replaces.
    """

    def __init__(
        self,
        trainer: Trainer,
        run_folder: RunFolder,
        display: Display,
        *,
        callbacks: Sequence[Callback],
        reports: Sequence[Report],
        writes: bool,
    ) -> None:
        self.trainer, self.run_folder, self.display = trainer, run_folder, display
        self.config, self.folder, self.writes = trainer.config, run_folder.folder, writes
        self.callbacks, self.reports = callbacks, reports
        self.metrics = MetricsFile(self.folder / METRICS)
        kept = trainer.config.train.samples
        self.training = (
            None if kept is None else TrainingSamples(self.folder / TRAINING, kept.steps)
        )
        self.symptoms = {
            n: Symptoms(x.algorithm, x.optimizer.least_norm, x.policy.diversity)
            for n, x in trainer.learners.items()
        }
        self.warnings: list[str] = []
        self.former_config = ""

    # ---- while it runs

    def begin(self) -> None:
        for callback in self.callbacks:
            for policy in self.trainer.policies.values():
                callback.on_start(policy)

    def before(self, evaluation: Evaluation) -> None:
        """The evaluation before the first step."""
        self._samples(BEFORE, evaluation)
        if self.writes:
            with self.run_folder.writing():
                disk.write(self.folder / BEFORE_METRICS, as_json(evaluation.metrics))
        self.display.evaluation("before", evaluation)
        if self.config.evaluation.count and not evaluation.metrics:
            self.display.say("note: no prompts are held out, so there is no evaluation")
        for name, value in Family.WATCH.of(evaluation.metrics).items():
            if math.isnan(value):
                self.display.say(
                    f"warning: {Family.WATCH}/{name} is None for every completion, so it can raise "
                    f"no alarm"
                )

    def known_before(self) -> Mapping[str, float]:
        """The first evaluation of a resumed run; {} and a note if its file is missing.

        The alarms know it then, and that after the last step of the run so far, if the run would
        have had an evaluation there anyway: it is later than the checkpoint.
        """
        evaluator = self.trainer.evaluator
        try:
            metrics: Mapping[str, float] = disk.read_record(self.folder / BEFORE_METRICS)
            samples = read_samples(self.folder / BEFORE)
            evaluator.alarms.remember(samples)
            if evaluator.references is not None:
                evaluator.references.remember(with_completions(samples, self.folder))
        except ValueError as error:
            self.display.say(f"note: there is no first evaluation to compare with: {error}")
            return {}
        step, every = self.trainer.step, self.config.evaluation.every
        with suppress(ValueError):  # the run ended without a result
            result = disk.read_record(self.folder / RESULT)
            ended = not result.get("interrupted") and result.get("steps") == step
            if ended and every and step % every == 0:
                evaluator.alarms.observe(read_samples(self.folder / AFTER), step)
        return metrics

    def recall(self) -> None:
        """Look again at the steps of a resumed run, as far as they are kept: what they warned of is
        not said again, and later steps are compared with them."""

        def kept() -> tuple[list[dict[str, Any]], list[str]]:
            lines = [line for line in self.metrics.read() if line["step"] <= self.trainer.step]
            with suppress(ValueError):  # it was killed
                result = disk.read_record(self.folder / RESULT)
                if result.get("steps") == self.trainer.step:
                    return lines, result.get("warnings", [])
            return lines, []

        lines, warnings = processes.first(kept)
        for line in lines:
            metrics = {name: math.nan if value is None else value for name, value in line.items()}
            self.warnings += warnings_of_step(self.symptoms, metrics, {}, step=line["step"])
        self.warnings += [warning for warning in warnings if warning not in self.warnings]

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Record completions of a finished step, before its metrics."""
        if self.training is None:
            return
        if self.writes:
            with self.run_folder.writing():
                self.training.write(step, samples)
        for callback in self.callbacks if samples else ():
            callback.on_samples(step, copied(samples))

    def truncate_after(self, step: int) -> str | None:
        """Drop what a resumed run writes again; a note on damaged lines."""
        if self.training is not None:
            self.training.truncate_after(step)
        return self.metrics.truncate_after(step)

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record a finished step."""
        if self.writes:
            with self.run_folder.writing():
                self.metrics.write(step, metrics)
                self._keep_config()
        self._has_begun()
        now = time.monotonic()
        self.display.step(
            step, metrics, seconds=now - self.trainer.began, elapsed=now - self.trainer.started
        )
        if Family.ALARM.of(metrics):
            self._print_alarms()
        nonfinite = {n: x.optimizer.first_nonfinite for n, x in self.trainer.learners.items()}
        for warning in warnings_of_step(self.symptoms, metrics, nonfinite, step=step):
            self._warn(warning)
        self._warn_of_failures(self.trainer.experience.failures)
        self._compare(step, metrics)
        for callback in self.callbacks:
            callback.on_step(step, copied(metrics))

    def check_collapse(self) -> bool:
        """Whether this step may be kept: with `train.stop_on_collapse`, False while a metric is far
        outside its past. Raises CollapsedError, on all processes alike, once it stays there."""
        if not self.config.train.stop_on_collapse:
            return True
        watched = [own.collapse for own in self.symptoms.values()]
        began = [step for own in watched for step in own.began.values()]
        if began:
            raise CollapsedError(
                f"the run ends after step {self.trainer.step} (train.stop_on_collapse): a metric "
                f"has left its own past since step {min(began)}, as the warning says; the last "
                f"checkpoint is from before it was as far outside"
            )
        return not any(own.suspected for own in watched)

    def interrupted(self, signal: str) -> None:
        """Say that a signal came, which ends the run after the step in progress."""
        words = "the run finishes this step, saves and ends; a further Ctrl-C ends it at once"
        self.display.say(f"{signal}: {words}")

    def _compare(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Say where the first step of a resumed run is not that which was lost, if it was made."""
        before, self.metrics.dropped = self.metrics.dropped.get(step, {}), {}
        changed = [
            f"{name} is {finite(metrics[name])} and was {before[name]}"
            for name in SAMPLED
            if name in before and before[name] != finite(metrics.get(name))
        ]
        if changed:
            self.display.say(
                f"note: step {step} was made before the interruption, too, and went another way: "
                f"{', '.join(changed)}. Episodes are played again exactly where the environment, "
                f"the rewards and the sampler depend on nothing but their seeds; this run is now "
                f"another one than without the interruption"
            )

    def evaluation(self, step: int, evaluation: Evaluation) -> dict[str, float]:
        """Pass an evaluation to callbacks; returns its metrics for the step's line."""
        self._warn_of_failures(self.trainer.evaluator.failures)
        for callback in self.callbacks if evaluation.metrics else ():
            callback.on_evaluation(step, evaluation.copied)
        return evaluation.logged

    def after(self, evaluation: Evaluation) -> None:
        """The evaluation after the last step."""
        self._samples(AFTER, evaluation)
        self.display.evaluation("after", evaluation)
        if evaluation.metrics:
            self._print_alarms()

    def _samples(self, file: str, evaluation: Evaluation) -> None:
        logged = self.evaluation(self.trainer.step, evaluation)
        if self.writes:
            with self.run_folder.writing():
                if evaluation.metrics:
                    self.metrics.write_evaluation(self.trainer.step, logged)
                write_samples(self.folder / file, evaluation.samples)

    def _warn_of_failures(self, reasons: Mapping[str, str]) -> None:
        for warning in next(iter(self.symptoms.values())).failed(reasons):
            self._warn(warning)

    def _warn(self, warning: str) -> None:
        """Say it now, and in the run's result, which the page shows."""
        self.warnings.append(warning)
        self.display.say(warning)

    # ---- at the end

    @property
    def alarms(self) -> dict[str, Alarm]:
        """By watched reward, the alarms of the last evaluation."""
        alarms = self.trainer.evaluator.alarms.raised
        return {name: alarm for name, alarm in alarms.items() if alarm is not None}

    def _print_alarms(self) -> None:
        for alarm in self.alarms.values():
            self.display.say(str(alarm))

    def _has_begun(self) -> None:
        left = self.run_folder.begun()
        if left is not None:
            self.display.say(f"note: {left}")

    def _keep_config(self) -> None:
        """Write a resumed run's changed configuration, once a step was made with it."""
        if self.former_config and self.writes:
            write_config(self.folder, self.config, former=self.former_config)
        self.former_config = ""

    def finish(self, result: RunResult) -> None:
        learners = self.config.learners
        for warning in dict.fromkeys(w for own in self.symptoms.values() for w in own.at_end()):
            self._warn(warning)
        record = {
            "before": dict(result.before),
            "after": dict(result.after),
            "accuracy": result.accuracy,
            "steps": result.steps,
            "seconds": result.seconds,
            "interrupted": result.interrupted,
            "alarms": {name: alarm.record() for name, alarm in result.alarms.items()},
            "warnings": self.warnings,
            "policy": _names(learning.policy.name for learning in learners.values()),
            "algorithm": _names(x.algorithm.name for x in learners.values() if x.learns),
            "seed": self.config.seed,
            "unit": unit(result.policies),
        }
        self._has_begun()
        self.display.changes(result.before, result.after)
        if self.writes:
            with self.run_folder.writing():
                self._keep_config()
                disk.write(self.folder / RESULT, as_json(record))
                write_cards(self.folder / MODEL, result.policies, self.config, record)
                with progress.doing("writing the page"):
                    names = [report(self.folder).name for report in self.reports]
            where = "".join(f"; report: {result.folder / name}" for name in names)
            self.display.say(f"{self._steps(result)} in {result.seconds:.0f} s{where}")
        for callback in self.callbacks:
            callback.on_end(copied(record))

    def _steps(self, result: RunResult) -> str:
        """How many steps there were, and why there were no more."""
        train = self.config.train
        count = f"{result.steps} step{'' if result.steps == 1 else 's'}"
        if result.interrupted or train.minutes is None or result.steps >= train.steps:
            return count
        return f"{count} of {train.steps:,} (train.minutes: {train.minutes:g})"


def _names(names: Iterable[str]) -> str:
    return " + ".join(dict.fromkeys(names))
