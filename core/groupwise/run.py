"""train(config): puts the parts together, and writes the run's folder."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise import config as configuration
from groupwise import processes, snapshot
from groupwise.assembly import (
    build_parts,
    check_sections,
    make_callbacks,
    make_evaluator,
    make_policy,
    make_trainer,
)
from groupwise.building import with_secrets
from groupwise.checkpoint import Checkpoints, read_weights
from groupwise.config import LoadedConfig, idle_processes
from groupwise.course import Course, RunResult
from groupwise.folder import (
    changes,
    check_folder,
    check_kept,
    check_objects,
    make_folder,
    read_config,
    run_config,
    write_config,
    write_facts,
)
from groupwise.objects import Objects, laid_over, set_aside
from groupwise.tracking import Display


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
    objects = objects or {}
    checkpoints = Checkpoints(folder / "checkpoints", keep=settings.keep_checkpoints)
    if resume:  # before anything takes its time
        checkpoints.last()
        check_objects(folder, objects)
    loaded = with_secrets(loaded, check_sections(loaded, objects))
    changed = changes(folder, loaded) if resume else []
    parts = build_parts(loaded, objects)
    trainer = make_trainer(parts, accelerator)
    callbacks = make_callbacks(parts, accelerator)
    idle = idle_processes(loaded.config, accelerator.num_processes)
    # A policy may find out by now what its model does not allow, and refuse it.
    notes = [*parts.notes, *trainer.policy.notes, *([idle] if idle else [])]
    snapshot.check(trainer)
    if chief and not resume:
        # Only now: a mistake in the configuration must not cost the run that is being replaced.
        make_folder(folder)
    accelerator.wait_for_everyone()
    if resume:
        checkpoint = checkpoints.load()
        check_kept(checkpoint.state["names"], loaded.config)
        snapshot.restore(trainer, checkpoint)
        started -= trainer.seconds_trained
    run = Course(loaded, trainer, checkpoints, callbacks, folder if chief else None)
    if chief:
        run.metrics.truncate_after(trainer.step)
        write_facts(folder, loaded, objects)
        if not resume:
            write_config(folder, loaded)
        elif changed:
            run.new_config = f"config.until_step_{trainer.step}.yaml"
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


def evaluate_run(
    run: Path, overrides: Sequence[str] = (), *, objects: Objects | None = None
) -> Mapping[str, float]:
    """Evaluate a run's last checkpoint again, by its own configuration but for the overrides.

    objects: the Python objects that the run was given, by the key path of their section.
    """
    loaded, accelerator = run_config(run, overrides), processes.accelerator()
    averaged = loaded.config.train.ema is not None
    checkpoint = Checkpoints(run / "checkpoints").load(["average" if averaged else "weights"])
    check_objects(run, objects or {})
    check_kept(checkpoint.state["names"], loaded.config)
    parts = build_parts(loaded, objects or {})
    parts.load_rewards()
    parts.rewards.load_state_dict(checkpoint.state["rewards"])
    policy = make_policy(parts, accelerator)
    read_weights(policy, checkpoint, averaged=averaged)
    evaluator = make_evaluator(parts, accelerator)
    evaluator.judge.load_state_dict(checkpoint.state["judge"])
    return evaluator(policy).metrics
