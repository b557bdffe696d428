"""train(config): builds the parts of a run, runs it and writes its folder."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from groupwise.building.build import build_parts, open_trainer
from groupwise.building.callbacks import build_callbacks, opened
from groupwise.building.overlap import with_overlap
from groupwise.building.reports import build_reports
from groupwise.callback import RunContext
from groupwise.config.load import LoadedConfig, idle_processes, load_config
from groupwise.config.objects import is_model, place_of
from groupwise.display import Display, installed_display
from groupwise.kit import processes, progress, waiting
from groupwise.kit.errors import UserError
from groupwise.learning.trainer import Trainer, unit
from groupwise.plugins.resolved import ResolvedConfig, resolve
from groupwise.prompts.digests import changed_rows
from groupwise.recording import snapshot
from groupwise.recording.recorder import Recorder
from groupwise.recording.result import RunResult
from groupwise.recording.saver import Saver
from groupwise.run.audits import audits
from groupwise.run.gold import gold_notes
from groupwise.run.interruption import orderly
from groupwise.run.loop import run_and_record
from groupwise.run.reopening import check_of
from groupwise.run.start import start
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.files import CHECKPOINTS, MODEL
from groupwise.storage.run_folder import Resume, RunFolder
from groupwise.storage.run_info import (
    changes,
    check_kept,
    check_objects,
    read_config,
    write_config,
    write_run_info,
    written,
)
from groupwise.version import __version__


def train(
    config: Mapping[str, Any] | str | Path | None = None,
    *,
    resume: Resume = False,
    overwrite: bool = False,
    quiet: bool = False,
    **overrides: Any,
) -> RunResult:
    """Train with a YAML file, a mapping, or keywords alone.

    overrides: top-level sections of the configuration. The keys of a section replace those of the
    file; a section that names another plugin replaces the whole section. Plugin names may be
    replaced by Python objects: a `Policy`, reward functions, an `Algorithm`, rows or a prompt
    source, callbacks. Dotted keys (`**{"train.steps": 3}`) set single values.
    resume: True continues the run from its last checkpoint; "auto" does so if there is one, and
    starts the run otherwise.

    A model of transformers, or a pipeline of diffusers, may stand for the policy, with its
    `tokenizer` as a further keyword: it is trained in place. A DataFrame of pandas, or a dataset of
    `datasets`, may stand for the prompts.

    Raises UserError for every mistake that the caller can correct.
    """
    overrides = {place_of(key, value): value for key, value in overrides.items()}
    if config is None:  # keywords alone are the configuration
        config = {key: value for key, value in overrides.items() if "." not in key}
        overrides = {key: value for key, value in overrides.items() if "." in key}
    if isinstance(config, str | Path):
        loaded = read_config(Path(config), overrides)
    else:
        loaded = load_config(config, overrides)
    return train_from_config(loaded, resume=resume, overwrite=overwrite, quiet=quiet)


def train_from_config(
    loaded: LoadedConfig,
    *,
    resume: Resume = False,
    overwrite: bool = False,
    quiet: bool = False,
    display: Display | None = None,
) -> RunResult:
    """One run from its first evaluation to its report.

    display: one that is open already, which has shown the imports.
    """
    if resume and overwrite:
        raise UserError("--resume goes on with the run that --overwrite would replace: choose one")
    if display is None:
        with installed_display(quiet=quiet) as own:
            return train_from_config(loaded, resume=resume, overwrite=overwrite, display=own)
    started = time.monotonic()
    accelerator = processes.accelerator()
    if not accelerator.is_main_process:
        display.silence()
    flags = {"--resume": resume, "--overwrite": overwrite, "groupwise's version": __version__}
    processes.check_same({**written(loaded.config), **flags})
    waiting.limit(loaded.config.train.timeout)
    with orderly(), ExitStack() as stack:
        resumed = Path(loaded.config.output) if resume else None
        resolved, notes = with_overlap(resolve(loaded), resumed=resumed)
        run_folder = RunFolder(resolved, resume=resume, overwrite=overwrite)
        # The first process opens the folder; an error is raised on all.
        run_folder.resume = processes.first(lambda: stack.enter_context(run_folder).resume)
        return _train(resolved, run_folder, accelerator, display, started=started, notes=notes)


def _train(
    loaded: ResolvedConfig,
    run_folder: RunFolder,
    accelerator: Accelerator,
    display: Display,
    *,
    started: float,
    notes: Sequence[str],
) -> RunResult:
    is_main, settings = accelerator.is_main_process, loaded.config.train
    folder, resume = run_folder.folder, run_folder.resume
    process = (accelerator.process_index, accelerator.num_processes) if settings.shard else (0, 1)
    checkpoints = Checkpoints(folder / CHECKPOINTS, keep=settings.keep_checkpoints, process=process)
    progress.start("loading")
    if resume:  # fail early, before models are loaded
        checkpoints.last()
        check_objects(folder, loaded.objects)
        _check_unchanged(loaded)
    loaded.check()
    loaded = loaded.concealed()
    changed = changes(folder, loaded) if resume else []
    with progress.doing("prompts"):
        parts = build_parts(loaded)
    with progress.doing("rewards"):
        parts.notes.extend(gold_notes(parts))  # before models are loaded
        processes.first(lambda: audits(parts, refusing=True))
    loaded, settings = parts.loaded, parts.config.train
    with open_trainer(parts, accelerator) as trainer:
        callbacks, reports = build_callbacks(parts, accelerator), build_reports(loaded)
        # Loading a model may have added notes to the policy.
        notes = [*notes, *parts.notes, *(n for p in trainer.policies.values() for n in p.notes)]
        notes += trainer.experience.sampler.notes
        notes += filter(None, [idle_processes(loaded.config, accelerator.num_processes)])
        snapshot.check(trainer)
        # Only now: a mistake in the configuration must not touch the run to be replaced.
        processes.first(run_folder.make)
        if resume:
            notes += _restore(trainer, checkpoints, loaded)
            started -= trainer.seconds
        context = RunContext(
            folder=folder,
            settings=written(loaded.config),
            step=trainer.step,
            say=display.say,
        )
        display.begin(
            context,
            unit=unit(trainer.policies),
            labels=trainer.policies,
            accuracy=parts.accuracy.name,
        )
        hint = _resume_hint(loaded, run_folder)
        saver = Saver(trainer, run_folder, checkpoints, writes=is_main, resume_hint=hint)
        recorder = Recorder(
            trainer,
            run_folder,
            display,
            callbacks=[*callbacks.values()],
            reports=reports,
            writes=is_main,
        )
        this_start = start(accelerator, trainer.step)
        if is_main:
            damaged = recorder.truncate_after(trainer.step)
            notes += filter(None, [damaged, run_folder.left_over()])
            files = [name for callback in callbacks.values() for name in callback.files]
            write_run_info(
                folder,
                loaded,
                run=run_folder.identity,
                start=this_start,
                accuracy=parts.accuracy.name,
                files=files,
            )
            if not resume:
                write_config(folder, loaded.config)
            elif changed:
                recorder.former_config = f"config.until_step_{trainer.step}.yaml"
                recorder.metrics.dropped = {}  # they may differ
        with ExitStack() as stack:
            with display.paused():  # the packages of trackers print to the terminal
                stack.enter_context(opened(callbacks, loaded, context))
            if resume:
                display.say(f"resumed after step {trainer.step} of {settings.steps}")
            for note in (*(f"resumed with {change}" for change in changed), *notes):
                display.say(f"note: {note}")
            return run_and_record(trainer, recorder, saver, started)


def _resume_hint(loaded: LoadedConfig, run_folder: RunFolder) -> str:
    """How the run is resumed, as the end of a sentence."""
    if any(map(is_model, loaded.objects)):
        model = f"{run_folder.shown}/{MODEL}"
        return f"a run whose model is an object cannot be resumed; {model} can be trained further"
    if loaded.objects:
        return "`groupwise.train(..., resume=True)` with the same arguments goes on from it"
    return f"`groupwise resume {run_folder.shown}` goes on from it"


def _check_unchanged(loaded: LoadedConfig) -> None:
    """Raise UserError if the run to be resumed trains a model that was passed as an object."""
    for path in loaded.objects:
        if is_model(path):
            raise UserError(
                f"{'.'.join(map(str, path))}: a run whose model is an object cannot be resumed, "
                f"since training may have changed the object already; save the untrained model "
                f"into a folder, and pass the folder, to begin a run that can be"
            )


def _restore(trainer: Trainer, checkpoints: Checkpoints, loaded: LoadedConfig) -> Iterator[str]:
    """Load the last checkpoint that can be read into the trainer; yields notes."""
    checkpoint = checkpoints.load(check=check_of(checkpoints.folder.parent))
    check_kept(checkpoint.state["names"], loaded.config)
    snapshot.restore(trainer, checkpoint)
    yield from checkpoint.passed
    prompts, state = trainer.experience.prompts, checkpoint.state
    rows, before = len(prompts.source), state.get("rows")
    if before not in (None, rows):
        yield f"there are {rows} rows of prompts, before there were {before}: their order changes"
        state = {**state, "digests": {**state.get("digests", {}), "rows": []}}
    yield from changed_rows(
        state.get("digests", {}), trainer.digests, prompts, trainer.evaluator.draws
    )
    steps = loaded.config.train.steps
    if trainer.step >= steps:
        yield (
            f"{trainer.step} steps are done, and train.steps is {steps}: nothing is left to train; "
            f"set a higher train.steps to continue"
        )
        return
    yield from snapshot.jumps(trainer, checkpoint.state)
