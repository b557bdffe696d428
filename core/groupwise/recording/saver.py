"""Saver: writes a run's checkpoints and its trained models."""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from groupwise.config.learners import SOLE
from groupwise.kit import processes, progress
from groupwise.kit.errors import UserError
from groupwise.learning.trainer import Trainer
from groupwise.recording import snapshot
from groupwise.storage import disk
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.files import MODEL, RUN_INFO
from groupwise.storage.run_folder import RunFolder
from groupwise.storage.staging import Checkpoint

T = TypeVar("T")


class Saver:
    """Saves on the first process, which `writes` the run's files, or on all if a policy is sharded.

    resume_hint: says how the run is resumed.
    """

    def __init__(
        self,
        trainer: Trainer,
        run_folder: RunFolder,
        checkpoints: Checkpoints,
        *,
        writes: bool,
        resume_hint: str,
    ) -> None:
        self.trainer, self.run_folder, self.checkpoints = trainer, run_folder, checkpoints
        self.writes = writes
        self._meshes = [learner.policy.mesh for learner in trainer.learners.values()]
        self._together = any(mesh is not None for mesh in self._meshes)
        self._is_writing = False
        self.resume_hint = resume_hint

    def checkpoint(self) -> None:
        """Begin to save a checkpoint, which a thread writes while training goes on. A collective,
        as all methods but `rescue` and `close`."""
        self._prepare()
        self._on_writers(partial(self._checkpoint, self.checkpoints.begin))
        self._is_writing = True

    def finish(self, *, wait: bool = True) -> None:
        """Complete a checkpoint that was begun; wait: until it is written, else only if it is."""
        if self._is_writing:
            self._is_writing = not self._on_writers(partial(self._finish, wait=wait))

    def save(self) -> None:
        """Save a checkpoint and the models; all processes go on when they are written."""
        self._prepare()
        self._on_writers(self._save)
        self._is_writing = False

    def close(self) -> None:
        """Wait for what this process writes."""
        self.checkpoints.close()

    def _prepare(self) -> None:
        self.trainer.experience.store()
        self.trainer.saved = time.monotonic()

    def _on_writers(self, call: Callable[[], T]) -> T:
        return call() if self._together else processes.first(call, patient=True)

    def _finish(self, *, wait: bool) -> bool:
        with self.run_folder.writing(together=self._together):
            return self.checkpoints.finish(wait=wait)

    def _checkpoint(self, save: Callable[[int, Checkpoint], object]) -> None:
        with (
            progress.doing("saving a checkpoint"),
            self.run_folder.writing(together=self._together),
        ):
            checkpoint = snapshot.take(self.trainer, run=self.run_folder.identity)
            save(self.trainer.step, checkpoint)

    def _save(self) -> None:
        try:
            self._checkpoint(self.checkpoints.save)
        finally:  # the models are saved even if the checkpoint fails
            with (
                progress.doing("saving the model"),
                self.run_folder.writing(together=self._together),
            ):
                self._save_models()

    def _save_models(self) -> None:
        model = self.run_folder.folder / MODEL
        fresh = model.with_name(f"{MODEL}.new")
        if self.writes:
            disk.remove(fresh)
        for label, learner in self.trainer.learners.items():
            with learner.weights.using(learner.averaged):
                learner.policy.save_pretrained(fresh if label == SOLE else fresh / label)
        if self.writes and fresh.exists():  # a policy may have nothing to save
            disk.open_to_others(fresh)
            self.run_folder.keep()  # a policy makes missing folders, and so the run's
            disk.replace(model, fresh)

    def rescue(self, say: Callable[[str], None]) -> None:
        """After an error, save the last whole step: a failure at step 90 must not lose 89 steps."""
        trainer = self.trainer
        if not self.writes or not trainer.step or self.run_folder.is_lost:
            return
        try:
            # Saving a sharded policy is a collective, and the other processes may not join it.
            whole = all(learner.at_step_boundary for learner in trainer.learners.values())
            if whole and all(mesh is None or mesh.size() == 1 for mesh in self._meshes):
                self._save()
        except Exception as error:  # the original error is raised; this one is only shown
            say(f"step {trainer.step} could not be saved: {disk.reason(error)}")
        with suppress(UserError):
            step = self.checkpoints.last().name.replace("_", " ")
            resumable = (self.run_folder.folder / RUN_INFO).exists()
            more = self.resume_hint if resumable else f"it is in {self.checkpoints.folder}"
            say(f"{step} is saved; {more}")
