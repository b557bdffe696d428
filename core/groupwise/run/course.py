"""Course: a run from its first evaluation to its report, and every file that it writes."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.callback import Callback
from groupwise.config.load import LoadedConfig
from groupwise.errors import UserError
from groupwise.evaluation import Alarm, Evaluation
from groupwise.policy import Policy
from groupwise.report import write_report
from groupwise.run import snapshot
from groupwise.run.card import write_card
from groupwise.run.display import Display, brief
from groupwise.run.symptoms import Symptoms
from groupwise.storage import disk
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.facts import FACTS, kept, write_config
from groupwise.storage.metrics import MetricsFile, as_json
from groupwise.storage.place import MODEL, RESULT, Place
from groupwise.storage.samples import read_samples, write_samples
from groupwise.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What came out: metrics before and after on held-out prompts, and where everything lies.

    alarms: by name the watched rewards that had worsened at the last evaluation.
    """

    before: Mapping[str, float]
    after: Mapping[str, float]
    steps: int
    seconds: float
    folder: Path
    policy: Policy
    interrupted: bool = False
    alarms: Mapping[str, Alarm] = field(default_factory=dict)


class Course:
    """The order of a run, and every file it writes, where this process `writes` any."""

    def __init__(
        self,
        loaded: LoadedConfig,
        trainer: Trainer,
        checkpoints: Checkpoints,
        callbacks: Sequence[Callback],
        place: Place,
        *,
        writes: bool,
    ) -> None:
        self.loaded, self.trainer, self.place = loaded, trainer, place
        self.folder = place.folder if writes else None
        self.checkpoints, self.callbacks = checkpoints, callbacks
        self.metrics = MetricsFile(place.folder / "metrics.jsonl")
        self.symptoms = Symptoms(clip=getattr(trainer.algorithm, "clip_high", 0.2))
        self.last: tuple[int, Evaluation] | None = None
        self.new_config = ""

    def go(self, display: Display, started: float) -> RunResult:
        trainer, policy = self.trainer, self.trainer.policy
        for callback in self.callbacks:
            callback.on_start(policy)
        before = self._before(display)
        try:
            finished = trainer.fit(
                partial(self._on_step, display), self._checkpoint, self._on_evaluation
            )
            # Before the last evaluation, which takes its time and may be interrupted, too.
            self._save()
            after = Evaluation({}, [])
            try:
                after = self._evaluate("after") if finished else after
            except KeyboardInterrupt:
                finished = False
        except BaseException:
            self._rescue(display)
            raise
        if not finished:
            display.say(f"stopped: the model and a checkpoint are saved; {self._how_to_go_on}")
        elif after.metrics:
            display.say(f"after: {brief(after.metrics)}")
            self._sound(display)
        result = RunResult(
            before=before,
            after=after.metrics,
            steps=trainer.step,
            seconds=time.monotonic() - started,
            folder=self.loaded.config.output,
            policy=policy,
            interrupted=not finished,
            alarms=self._raised,
        )
        self._finish(result, display)
        return result

    def _rescue(self, display: Display) -> None:
        """A reward that fails at step 90 must not cost the 90 steps before it."""
        trainer = self.trainer
        if self.folder is None or not trainer.step or self.place.taken:
            return
        try:
            if trainer.whole:
                self._save()
        except Exception as error:  # what the run ends with is told; this is told beside it
            display.say(f"step {trainer.step} could not be saved: {disk.reason(error)}")
        with suppress(UserError):
            step = self.checkpoints.last().name.replace("_", " ")
            resumable = (self.folder / FACTS).exists()
            more = self._how_to_go_on if resumable else f"it lies in {self.checkpoints.folder}"
            display.say(f"{step} is saved; {more}")

    def _before(self, display: Display) -> Mapping[str, float]:
        # Every process looks: they must agree on whether there is something to evaluate.
        known = self.place.folder / "samples" / "before.json"
        if self.trainer.step:
            try:
                metrics: Mapping[str, float] = disk.read_record(known)
                self.trainer.evaluator.remember(read_samples(known.with_suffix(".jsonl")))
            except ValueError as error:
                display.say(f"note: there is no before to compare with: {error}")
                return {}
            return metrics
        evaluation = self._evaluate("before")
        if self.folder is not None:
            disk.write(known, as_json(evaluation.metrics))
        if evaluation.metrics:
            display.say(f"before: {brief(evaluation.metrics)}")
        elif self.loaded.config.evaluation.count:
            display.say("note: no prompt is held out, so nothing is evaluated")
        for name, value in evaluation.metrics.items():
            if name.startswith("watch/") and math.isnan(value):
                display.say(f"warning: {name} is None for every completion, so no alarm can come")
        return evaluation.metrics

    def _evaluate(self, name: str) -> Evaluation:
        """Evaluate, unless the weights were evaluated as they are, and write the samples."""
        trainer = self.trainer
        if self.last is None or self.last[0] != trainer.step:
            with trainer.averaged():
                evaluation = trainer.evaluator(trainer.policy, trainer.state)
            self._on_evaluation(trainer.step, evaluation)
            if self.folder is not None and evaluation.metrics:
                self.metrics.write_evaluation(trainer.step, evaluation.logged)
        else:
            evaluation = self.last[1]
        if self.folder is not None:
            self.place.keep()
            write_samples(self.folder / "samples" / f"{name}.jsonl", evaluation.samples)
        return evaluation

    def _on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        self.last = step, evaluation
        for callback in self.callbacks if evaluation.metrics else ():
            callback.on_evaluation(step, evaluation)

    def _on_step(self, display: Display, step: int, metrics: dict[str, Any]) -> None:
        if self.last is not None and self.last[0] != step:
            self.last = None  # pictures of an evaluation are large
        if self.folder is not None:
            self.place.keep()
            self.metrics.write(step, metrics)
            self._keep_config()
        self._has_begun(display)
        display.step(step, metrics)
        if any(name.startswith("alarm/") for name in metrics):
            self._sound(display)
        for warning in self.symptoms.look(metrics, self.trainer.optimizer.culprit):
            display.say(f"step {step}: {warning}")
        for callback in self.callbacks:
            callback.on_step(step, metrics)

    @property
    def _raised(self) -> dict[str, Alarm]:
        alarms = self.trainer.evaluator.alarms
        return {name: alarm for name, alarm in alarms.items() if alarm is not None}

    def _sound(self, display: Display) -> None:
        for alarm in self._raised.values():
            display.say(str(alarm))

    @property
    def _how_to_go_on(self) -> str:
        return f"`groupwise resume {self.loaded.config.output}` goes on from it"

    def _has_begun(self, display: Display) -> None:
        left = self.place.begun()
        if left is not None:
            display.say(f"note: {left}")

    def _keep_config(self) -> None:
        """What a resumed run changed is the run's own as soon as a step was made with it."""
        if self.new_config and self.folder is not None:
            write_config(self.folder, self.loaded, former=self.new_config)
        self.new_config = ""

    def _checkpoint(self) -> None:
        if self.folder is not None:
            checkpoint = snapshot.take(self.trainer)
            of_run = {"names": kept(self.loaded.config), "run": self.place.identity}
            checkpoint = replace(checkpoint, state={**checkpoint.state, **of_run})
            self.checkpoints.save(self.trainer.step, checkpoint)

    def _save(self) -> None:
        if self.folder is None:
            return
        try:
            self._checkpoint()
        finally:  # the one must not cost the other
            fresh = self.folder / f"{MODEL}.new"
            disk.remove(fresh)
            with self.trainer.averaged():
                self.trainer.policy.save_pretrained(fresh)
            if fresh.exists():  # a policy may have nothing to save
                disk.replace(self.folder / MODEL, fresh)

    def _finish(self, result: RunResult, display: Display) -> None:
        record = {
            "before": dict(result.before),
            "after": dict(result.after),
            "steps": result.steps,
            "seconds": result.seconds,
            "interrupted": result.interrupted,
            "alarms": {name: alarm.record() for name, alarm in result.alarms.items()},
            "policy": self.loaded.config.policy.name,
            "algorithm": self.loaded.config.algorithm.name,
            "seed": self.loaded.config.seed,
            "unit": result.policy.unit,
        }
        self._keep_config()
        self._has_begun(display)
        if self.folder is not None:
            self.place.keep()
            disk.write(self.folder / RESULT, as_json(record))
            write_card(self.folder / MODEL, result.policy, self.loaded, record)
            report = result.folder / write_report(self.folder).name
            display.say(f"{result.steps} steps in {result.seconds:.0f} s; report: {report}")
        for callback in self.callbacks:
            callback.on_end(record)
