"""Record: everything that a run writes, prints and passes to callbacks."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from groupwise import processes
from groupwise.callback import Callback
from groupwise.config.learners import SOLE
from groupwise.config.load import LoadedConfig
from groupwise.errors import UserError
from groupwise.evaluation import Alarm, Evaluation
from groupwise.metric_names import Family
from groupwise.policy import Policy
from groupwise.run import snapshot
from groupwise.run.card import write_card
from groupwise.run.display import Display, brief
from groupwise.run.reports import Report
from groupwise.run.symptoms import Symptoms
from groupwise.run.time_left import TimeLeft
from groupwise.run.trainer import Trainer
from groupwise.storage import disk
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.facts import FACTS, kept, write_config
from groupwise.storage.metrics import MetricsFile, as_json
from groupwise.storage.run_folder import MODEL, RESULT, RunFolder
from groupwise.storage.samples import read_samples, with_completions, write_samples


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run: metrics on held-out prompts before and after, the folder, the policies.

    policies: by label, `policy` if there is only one; alarms: by watched reward, those raised at
    the last evaluation.
    """

    before: Mapping[str, float]
    after: Mapping[str, float]
    steps: int
    seconds: float
    folder: Path
    policies: Mapping[str, Policy]
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


class Record:
    """The files of a run, if this process `writes` them; its lines on the terminal; callbacks."""

    def __init__(
        self,
        loaded: LoadedConfig,
        trainer: Trainer,
        *,
        checkpoints: Checkpoints,
        callbacks: Sequence[Callback],
        reports: Sequence[Report],
        run_folder: RunFolder,
        display: Display,
        writes: bool,
    ) -> None:
        self.loaded, self.trainer, self.run_folder, self.display = (
            loaded,
            trainer,
            run_folder,
            display,
        )
        self.folder = run_folder.folder if writes else None
        self.checkpoints, self.callbacks, self.reports = checkpoints, callbacks, reports
        self.metrics = MetricsFile(run_folder.folder / "metrics.jsonl")
        self.symptoms = {n: Symptoms(x.algorithm) for n, x in trainer.learners.items()}
        self.time_left = TimeLeft(loaded.config)
        self.former_config = ""

    # ---- while it runs

    def begin(self) -> None:
        for callback in self.callbacks:
            for policy in self.trainer.policies.values():
                callback.on_start(policy)

    def before(self, evaluation: Evaluation) -> None:
        """The evaluation before the first step."""
        self.time_left.evaluated(self.trainer.clock.seconds.get("evaluate", 0.0))
        self._samples("before", evaluation)
        if self.folder is not None:
            with self.run_folder.writing():
                disk.write(self._first_metrics, as_json(evaluation.metrics))
        if evaluation.metrics:
            self.display.say(f"before: {brief(evaluation.metrics)}")
        elif self.loaded.config.evaluation.count:
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
        try:
            metrics: Mapping[str, float] = disk.read_record(self._first_metrics)
            samples = read_samples(self._first_metrics.with_suffix(".jsonl"))
            self.trainer.evaluator.alarms.remember(samples)
            if self.trainer.evaluator.references is not None:
                whole = with_completions(samples, self.run_folder.folder)
                self.trainer.evaluator.references.remember(whole)
        except ValueError as error:
            self.display.say(f"note: there is no first evaluation to compare with: {error}")
            return {}
        step, every = self.trainer.step, self.loaded.config.evaluation.every
        with suppress(ValueError):  # the run ended without a result
            result = disk.read_record(self.run_folder.folder / RESULT)
            ended = not result.get("interrupted") and result.get("steps") == step
            if ended and every and step % every == 0:
                samples = read_samples(self.run_folder.folder / "samples" / "after.jsonl")
                self.trainer.evaluator.alarms.observe(samples, step)
        return metrics

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record a finished step."""
        if self.folder is not None:
            with self.run_folder.writing():
                self.metrics.write(step, metrics)
                self._keep_config()
        self._has_begun()
        self.display.step(step, metrics, left=self._left(step, metrics))
        if Family.ALARM.of(metrics):
            self._print_alarms()
        labels_by_warning: dict[str, list[str]] = {}
        for label, learner in self.trainer.learners.items():
            own = {n.removeprefix(f"{label}/"): value for n, value in metrics.items()}
            for warning in self.symptoms[label].warnings(own, learner.optimizer.first_nonfinite):
                labels_by_warning.setdefault(warning, []).append(label)
        for warning, labels in labels_by_warning.items():
            # A warning about all learners is shown once, without labels.
            prefix = "" if len(labels) == len(self.symptoms) else f"{', '.join(labels)}: "
            self.display.say(f"step {step}: {prefix}{warning}")
        self._warn_of_failures(self.trainer.experience.failures)
        for callback in self.callbacks:
            callback.on_step(step, metrics)

    def _left(self, step: int, metrics: Mapping[str, Any]) -> float:
        """Seconds until the run ends, after a step and the evaluation that followed it."""
        now, evaluated = time.monotonic(), metrics.get("time/evaluate", 0.0)
        if evaluated:
            self.time_left.evaluated(evaluated)
        trainer = self.trainer
        spent, elapsed = now - trainer.began - evaluated, now - trainer.started
        return self.time_left.after(step, spent, elapsed=elapsed)

    def evaluation(self, step: int, evaluation: Evaluation) -> dict[str, float]:
        """Pass an evaluation to callbacks; returns its metrics for the step's line."""
        self._warn_of_failures(self.trainer.evaluator.failures)
        for callback in self.callbacks if evaluation.metrics else ():
            callback.on_evaluation(step, evaluation)
        return evaluation.logged

    def after(self, evaluation: Evaluation) -> None:
        """The evaluation after the last step."""
        self._samples("after", evaluation)
        if evaluation.metrics:
            self.display.say(f"after: {brief(evaluation.metrics)}")
            self._print_alarms()

    def _samples(self, name: str, evaluation: Evaluation) -> None:
        logged = self.evaluation(self.trainer.step, evaluation)
        if self.folder is not None:
            with self.run_folder.writing():
                if evaluation.metrics:
                    self.metrics.write_evaluation(self.trainer.step, logged)
                write_samples(self.folder / "samples" / f"{name}.jsonl", evaluation.samples)

    def _warn_of_failures(self, reasons: Mapping[str, str]) -> None:
        for warning in next(iter(self.symptoms.values())).failed(reasons):
            self.display.say(warning)

    @property
    def _first_metrics(self) -> Path:
        """The file of the first evaluation's metrics, which a resumed run reads."""
        return self.run_folder.folder / "samples" / "before.json"

    # ---- saving

    def rescue(self) -> None:
        """After an error, save the last whole step: a failure at step 90 must not lose 89 steps."""
        trainer = self.trainer
        if self.folder is None or not trainer.step:
            return
        if self.run_folder.taken or self.run_folder.is_gone:
            return
        try:
            # Saving a sharded policy is a collective, and the other processes may not join it.
            meshes = [learner.policy.mesh for learner in trainer.learners.values()]
            whole = all(learner.at_step_boundary for learner in trainer.learners.values())
            if whole and all(mesh is None or mesh.size() == 1 for mesh in meshes):
                self.save()
        except Exception as error:  # the original error is raised; this one is only shown
            self.display.say(f"step {trainer.step} could not be saved: {disk.reason(error)}")
        with suppress(UserError):
            step = self.checkpoints.last().name.replace("_", " ")
            resumable = (self.folder / FACTS).exists()
            more = self._how_to_resume if resumable else f"it is in {self.checkpoints.folder}"
            self.display.say(f"{step} is saved; {more}")

    @property
    def alarms(self) -> dict[str, Alarm]:
        """By watched reward, the alarms of the last evaluation."""
        alarms = self.trainer.evaluator.alarms.raised
        return {name: alarm for name, alarm in alarms.items() if alarm is not None}

    def _print_alarms(self) -> None:
        for alarm in self.alarms.values():
            self.display.say(str(alarm))

    def stopped(self) -> None:
        """A signal ended the run, and it was saved."""
        self.display.say(f"stopped: the model and a checkpoint are saved; {self._how_to_resume}")

    @property
    def _how_to_resume(self) -> str:
        return f"`groupwise resume {self.loaded.config.output}` goes on from it"

    def _has_begun(self) -> None:
        left = self.run_folder.begun()
        if left is not None:
            self.display.say(f"note: {left}")

    def _keep_config(self) -> None:
        """Write a resumed run's changed configuration, once a step was made with it."""
        if self.former_config and self.folder is not None:
            write_config(self.folder, self.loaded, former=self.former_config)
        self.former_config = ""

    def checkpoint(self) -> None:
        self.trainer.saved = time.monotonic()
        if not self._saves:
            return
        with self._saving():
            checkpoint = snapshot.take(self.trainer)
            run = {"names": kept(self.loaded.config), "run": self.run_folder.identity}
            checkpoint = replace(checkpoint, state={**checkpoint.state, **run})
            self.checkpoints.save(self.trainer.step, checkpoint)

    def save(self) -> None:
        if not self._saves:
            return
        try:
            self.checkpoint()
        finally:  # the model is saved even if the checkpoint fails
            with self._saving():
                self._save_model()

    def _save_model(self) -> None:
        fresh = self.run_folder.folder / f"{MODEL}.new"
        if self.folder is not None:
            disk.remove(fresh)
        for label, learner in self.trainer.learners.items():
            with learner.weights.using(learner.averaged):
                learner.policy.save_pretrained(fresh if label == SOLE else fresh / label)
        if self.folder is not None and fresh.exists():  # a policy may have nothing to save
            disk.open_to_others(fresh)
            self.run_folder.keep()  # a policy makes missing folders, and so the run's
            disk.replace(self.folder / MODEL, fresh)

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Check the folder before all processes that save write to it, and on an error."""
        if self._is_sharded:
            processes.first(self.run_folder.keep)
        else:
            self.run_folder.keep()
        with self.run_folder.reporting_loss():
            yield

    @property
    def _saves(self) -> bool:
        """Whether this process takes part in saving: the first, or all for a sharded policy."""
        return self.folder is not None or self._is_sharded

    @property
    def _is_sharded(self) -> bool:
        return any(x.policy.mesh is not None for x in self.trainer.learners.values())

    def finish(self, result: RunResult) -> None:
        learners = self.loaded.config.learners
        record = {
            "before": dict(result.before),
            "after": dict(result.after),
            "steps": result.steps,
            "seconds": result.seconds,
            "interrupted": result.interrupted,
            "alarms": {name: alarm.record() for name, alarm in result.alarms.items()},
            "policy": _names(learning.policy.name for learning in learners.values()),
            "algorithm": _names(x.algorithm.name for x in learners.values() if x.learns),
            "seed": self.loaded.config.seed,
            "unit": unit(result.policies),
        }
        self._has_begun()
        if self.folder is not None:
            with self.run_folder.writing():
                reports = self._write_result(self.folder, result, record)
            where = "".join(f"; report: {result.folder / name}" for name in reports)
            self.display.say(f"{result.steps} steps in {result.seconds:.0f} s{where}")
        for callback in self.callbacks:
            callback.on_end(record)

    def _write_result(
        self, folder: Path, result: RunResult, record: Mapping[str, Any]
    ) -> list[str]:
        """Write the result, the cards of the models and the reports; returns the reports' names."""
        self._keep_config()
        disk.write(folder / RESULT, as_json(record))
        model = folder / MODEL
        for label, learning in self.loaded.config.learners.items():
            if learning.learns:
                own = model if label == SOLE else model / label
                for each in (model, own):  # a policy may save nothing
                    each.mkdir(exist_ok=True)
                write_card(own, result.policies[label], learning, self.loaded, record)
        return [report(folder).name for report in self.reports]


def unit(policies: Mapping[str, Policy]) -> str:
    """The word for decisions of this run."""
    units = {policy.unit for policy in policies.values()}
    return units.pop() if len(units) == 1 else "decisions"


def _names(names: Iterable[str]) -> str:
    return " + ".join(dict.fromkeys(names))
