"""train(config): puts the parts together, and writes the run's folder."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from groupwise import config as configuration
from groupwise import processes, snapshot
from groupwise.alarm import Alarm
from groupwise.assembly import (
    build_parts,
    check_sections,
    make_callbacks,
    make_evaluator,
    make_policy,
    make_trainer,
)
from groupwise.callback import Callback
from groupwise.card import write_card
from groupwise.checkpoint import Checkpoints, read_weights
from groupwise.config import LoadedConfig, idle_processes
from groupwise.evaluation import Evaluation
from groupwise.folder import (
    changes,
    check_folder,
    make_folder,
    read_config,
    run_config,
    write_config,
)
from groupwise.objects import Objects, laid_over, set_aside
from groupwise.policy import Policy
from groupwise.report import write_report
from groupwise.symptoms import Symptoms
from groupwise.tracking import Display, MetricsFile, as_json, brief, read_samples, write_samples
from groupwise.trainer import Trainer


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


def train(
    config: Mapping[str, Any] | str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **overrides: Any,
) -> RunResult:
    """Train by a YAML file, a mapping, or keywords alone.

    overrides: any top-level section of the configuration. The keys of a mapping, whole values
    each, go over the file's; another plugin's replace them all. In place of names there may be
    Python objects: a `Policy`, reward functions, an `Algorithm`, rows or a prompt source,
    callbacks. Dotted keys (`**{"train.steps": 3}`) set single values.

    Raises UserError for everything that the caller can mend.
    """
    objects: dict[tuple[str | int, ...], Any] = {}
    data, folder = dict(config) if isinstance(config, Mapping) else {}, Path.cwd()
    loaded = None
    if isinstance(config, str | Path):
        # Read alone first, so that the file's own mistakes are told with their lines.
        loaded = read_config(Path(config))
        data, folder = loaded.config.model_dump(), loaded.folder
    if loaded is None or overrides:
        dotted = {key: overrides.pop(key) for key in list(overrides) if "." in key}
        for key, value in {**data, **overrides}.items():
            data[key] = set_aside(key, laid_over(key, data.get(key), value), objects)
        stated = [] if config is None else list(overrides)
        begun_in = None if loaded is None else loaded.begun_in
        loaded = configuration.parse_config(data, dotted, folder=folder, stated=stated)
        loaded = replace(loaded, begun_in=begun_in)
    return train_from_config(
        loaded, resume=resume, overwrite=overwrite, quiet=quiet, objects=objects
    )


def train_from_config(
    loaded: LoadedConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    objects: Objects | None = None,
) -> RunResult:
    """One run from its first evaluation to its report."""
    started = time.monotonic()
    accelerator = processes.accelerator()
    chief = accelerator.is_main_process
    folder, settings = loaded.config.output, loaded.config.train
    check_folder(folder, resume=resume, overwrite=overwrite)
    changed = changes(folder, loaded) if resume else []
    checkpoints = Checkpoints(folder / "checkpoints", keep=settings.keep_checkpoints)
    if resume:
        checkpoints.last()  # before anything takes its time
    objects = objects or {}
    check_sections(loaded, objects)
    parts = build_parts(loaded, objects)
    trainer = make_trainer(parts, accelerator)
    callbacks = make_callbacks(parts, accelerator)
    idle = idle_processes(loaded.config, accelerator.num_processes)
    # A policy may find out by now what its model does not allow, and refuse it.
    notes = [*trainer.policy.notes, *([idle] if idle else [])]
    if chief and not resume:
        # Only now: a mistake in the configuration must not cost the run that is being replaced.
        make_folder(folder)
    accelerator.wait_for_everyone()
    if resume:
        snapshot.restore(trainer, checkpoints.load())
        started -= trainer.seconds_trained
    run = _Run(loaded, trainer, checkpoints, callbacks, folder if chief else None)
    if chief:
        run.metrics.truncate_after(trainer.step)
        former = f"config.until_step_{trainer.step}.yaml" if changed else None
        write_config(folder, loaded, former=former)
    display = Display(
        steps=settings.steps,
        unit=trainer.policy.unit,
        quiet=quiet or not chief,
        done=trainer.step,
    )
    with display:
        for note in (*(f"resumed with {change}" for change in changed), *notes):
            display.say(f"note: {note}")
        return run.go(display, started)


class _Run:
    """The order of a run, and every file it writes; without a folder it writes nothing."""

    def __init__(
        self,
        loaded: LoadedConfig,
        trainer: Trainer,
        checkpoints: Checkpoints,
        callbacks: Sequence[Callback],
        folder: Path | None,
    ) -> None:
        self.loaded, self.trainer, self.folder = loaded, trainer, folder
        self.checkpoints, self.callbacks = checkpoints, callbacks
        self.metrics = MetricsFile(loaded.config.output / "metrics.jsonl")
        self.symptoms = Symptoms(clip=getattr(trainer.algorithm, "clip_high", 0.2))
        self.last: tuple[int, Evaluation] | None = None

    def go(self, display: Display, started: float) -> RunResult:
        trainer, policy = self.trainer, self.trainer.policy
        for callback in self.callbacks:
            callback.on_start(policy)
        before = self._before(display)
        try:
            finished = trainer.fit(
                partial(self._on_step, display), self._checkpoint, self._on_evaluation
            )
        except BaseException:
            # A reward that fails at step 90 must not cost the 90 steps before it.
            if trainer.step and trainer.whole:
                self._save()
                display.say(f"step {trainer.step} is saved; {self._how_to_go_on}")
            raise
        # Before the last evaluation, which takes its time and may be interrupted, too.
        self._save()
        after = Evaluation({}, [])
        try:
            after = self._evaluate("after") if finished else after
        except KeyboardInterrupt:
            finished = False
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

    def _before(self, display: Display) -> Mapping[str, float]:
        # Every process looks: they must agree on whether there is something to evaluate.
        known = self.loaded.config.output / "samples" / "before.json"
        if self.trainer.step and known.exists():
            self.trainer.evaluator.remember(read_samples(known.with_suffix(".jsonl")))
            metrics: Mapping[str, float] = json.loads(known.read_text(encoding="utf-8"))
            return metrics
        evaluation = self._evaluate("before")
        if self.folder is not None:
            known.write_text(as_json(evaluation.metrics), encoding="utf-8")
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
            self.metrics.write(step, metrics)
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

    def _checkpoint(self) -> None:
        if self.folder is not None:
            self.checkpoints.save(self.trainer.step, snapshot.take(self.trainer))

    def _save(self) -> None:
        if self.folder is not None:
            self._checkpoint()
            with self.trainer.averaged():
                self.trainer.policy.save_pretrained(self.folder / "model")

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
        if self.folder is not None:
            (self.folder / "result.json").write_text(as_json(record), encoding="utf-8")
            write_card(self.folder / "model", result.policy, self.loaded, record)
            report = write_report(self.folder)
            display.say(f"{result.steps} steps in {result.seconds:.0f} s; report: {report}")
        for callback in self.callbacks:
            callback.on_end(record)


def evaluate_run(run: Path, overrides: Sequence[str] = ()) -> Mapping[str, float]:
    """Evaluate a run's last checkpoint again, by its own configuration but for the overrides."""
    loaded, accelerator = run_config(run, overrides), processes.accelerator()
    checkpoint = Checkpoints(run / "checkpoints").load()
    parts = build_parts(loaded, {})
    parts.load_rewards()
    parts.rewards.load_state_dict(checkpoint.state["rewards"])
    policy = make_policy(parts, accelerator)
    read_weights(policy, checkpoint, averaged=loaded.config.train.ema is not None)
    evaluator = make_evaluator(parts, accelerator)
    evaluator.judge.load_state_dict(checkpoint.state["judge"])
    return evaluator(policy).metrics
