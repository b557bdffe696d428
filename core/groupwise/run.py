"""train(config): puts the parts together, and writes the run's folder."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from groupwise import config as configuration
from groupwise import processes
from groupwise.alarm import Alarm
from groupwise.assembly import Objects, Parts, assemble, set_aside
from groupwise.checkpoint import load_checkpoint, read_state, save_checkpoint
from groupwise.config import LoadedConfig
from groupwise.errors import UserError
from groupwise.evaluation import Evaluation
from groupwise.folder import CONFIG, changes, check_folder, make_folder, write_config
from groupwise.policy import Policy
from groupwise.report import write_report
from groupwise.sections import kind_at
from groupwise.tracking import Display, MetricsFile, as_json, brief, read_samples, write_samples

RATIO_TOLERANCE = 0.1
"""A ratio error above this share of the clip range gets a warning (law 2)."""


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
        loaded = configuration.load_config(Path(config))
        data, folder = loaded.config.model_dump(), loaded.folder
    if loaded is None or overrides:
        dotted = {key: overrides.pop(key) for key in list(overrides) if "." in key}
        for key, value in {**data, **overrides}.items():
            data[key] = set_aside(key, _laid_over(key, data.get(key), value), objects)
        loaded = configuration.parse_config(data, dotted, folder=folder)
    return train_from_config(
        loaded, resume=resume, overwrite=overwrite, quiet=quiet, objects=objects
    )


def _laid_over(key: str, given: Any, value: Any) -> Any:
    """A section with the keys of `value` over its own, unless that names another plugin."""
    if isinstance(given, str) and kind_at((key,)) is not None:
        given = {"name": given}
    if not isinstance(given, Mapping) or not isinstance(value, Mapping):
        return value
    same = value.get("name", given.get("name")) == given.get("name")
    return {**given, **value} if same else value


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
    folder = loaded.config.output
    check_folder(folder, resume=resume, overwrite=overwrite)
    changed = changes(folder, loaded.config) if resume else []
    parts = assemble(loaded, objects or {}, accelerator)
    if chief and not resume:
        # Only now: a mistake in the configuration must not cost the run that is being replaced.
        make_folder(folder)
    accelerator.wait_for_everyone()
    run = _Run(loaded, parts, folder if chief else None)
    if resume:
        trainer = parts.trainer
        trainer.load_state_dict(
            load_checkpoint(
                folder / "checkpoints", parts.policy, trainer.optimizer, trainer.average
            )
        )
        started -= trainer.seconds_trained
    if chief:
        run.metrics.truncate_after(parts.trainer.step)
        former = f"config.until_step_{parts.trainer.step}.yaml" if changed else None
        write_config(folder, loaded.config, former=former)
    display = Display(
        steps=loaded.config.train.steps,
        unit=parts.policy.unit,
        quiet=quiet or not chief,
        done=parts.trainer.step,
    )
    with display:
        for change in changed:
            display.say(f"note: resumed with {change}")
        return run.go(display, started)


class _Run:
    """The order of a run, and every file it writes; without a folder it writes nothing."""

    def __init__(self, loaded: LoadedConfig, parts: Parts, folder: Path | None) -> None:
        self.loaded, self.parts, self.folder = loaded, parts, folder
        self.metrics = MetricsFile(loaded.config.output / "metrics.jsonl")
        self.callbacks = parts.callbacks
        self.warned = False
        self.last: tuple[int, Evaluation] | None = None

    def go(self, display: Display, started: float) -> RunResult:
        trainer, policy = self.parts.trainer, self.parts.policy
        for note in policy.notes:
            display.say(f"note: {note}")
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
                display.say(f"step {trainer.step} is saved; --resume goes on from it")
            raise
        # Before the last evaluation, which takes its time and may be interrupted, too.
        self._save()
        after = Evaluation({}, [])
        try:
            after = self._evaluate("after") if finished else after
        except KeyboardInterrupt:
            finished = False
        if not finished:
            display.say("stopped: the model and a checkpoint are saved; --resume goes on")
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
        if self.parts.trainer.step and known.exists():
            self.parts.evaluator.remember(read_samples(known.with_suffix(".jsonl")))
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
        trainer = self.parts.trainer
        if self.last is None or self.last[0] != trainer.step:
            with trainer.averaged():
                evaluation = self.parts.evaluator(self.parts.policy, trainer.state)
            self._on_evaluation(trainer.step, evaluation)
            if self.folder is not None and evaluation.metrics:
                self.metrics.write(trainer.step, evaluation.logged)
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
        self._watch_ratio(display, metrics)
        for callback in self.callbacks:
            callback.on_step(step, metrics)

    @property
    def _raised(self) -> dict[str, Alarm]:
        alarms = self.parts.evaluator.alarms
        return {name: alarm for name, alarm in alarms.items() if alarm is not None}

    def _sound(self, display: Display) -> None:
        for alarm in self._raised.values():
            display.say(str(alarm))

    def _watch_ratio(self, display: Display, metrics: Mapping[str, Any]) -> None:
        limit = RATIO_TOLERANCE * getattr(self.parts.algorithm, "clip_high", 0.2)
        if self.warned or not metrics["ratio_error"] > limit:
            return
        self.warned = True
        display.say(
            f"warning: the probability ratio at the first update is off by "
            f"{metrics['ratio_error']:.2g} (limit {limit:.2g}). Sampling and training disagree: "
            f"bf16 rounding, dropout, or a kernel that depends on the batch are the usual causes"
        )

    def _checkpoint(self) -> None:
        if self.folder is not None:
            trainer = self.parts.trainer
            save_checkpoint(
                self.folder / "checkpoints",
                self.parts.policy,
                trainer.optimizer,
                trainer.state_dict() | {"config_folder": str(self.loaded.folder.resolve())},
                trainer.average,
            )

    def _save(self) -> None:
        if self.folder is not None:
            self._checkpoint()
            with self.parts.trainer.averaged():
                self.parts.policy.save_pretrained(self.folder / "model")

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
            report = write_report(self.folder)
            display.say(f"{result.steps} steps in {result.seconds:.0f} s; report: {report}")
        for callback in self.callbacks:
            callback.on_end(record)


def evaluate_run(run: Path, overrides: Sequence[str] = ()) -> Mapping[str, float]:
    """Evaluate a run's last checkpoint again, by its own configuration but for the overrides."""
    if not (run / CONFIG).exists():
        raise UserError(f"{run} is no run: it has no {CONFIG}")
    state = read_state(run / "checkpoints")
    loaded = configuration.load_config(run / CONFIG, overrides, folder=Path(state["config_folder"]))
    parts = assemble(loaded, {}, processes.accelerator())
    trainer = parts.trainer
    load_checkpoint(run / "checkpoints", parts.policy, trainer.optimizer, trainer.average)
    with trainer.averaged():
        return parts.evaluator(parts.policy).metrics
