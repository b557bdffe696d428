"""Checkpoints: everything that a run needs to continue as if it had never stopped, without pickle.

The randomness of a sample is a function of (seed, draw, index), so no generator is saved. A
checkpoint has the weights, the optimizer's state, the position in the prompts, the step, and the
state of any other part that has one.

Each is a folder, renamed to `step_N` when all of it is on the disk. A list of its files, with sizes
and checksums, is written last: so a checkpoint that was interrupted by a kill or a full disk, or
damaged later, is recognised and skipped.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from groupwise.kit import processes
from groupwise.kit.errors import UserError
from groupwise.storage.disk import remove, sync
from groupwise.storage.inventory import FILES, problem, write_list
from groupwise.storage.saved import Saved, examined, read, step_of
from groupwise.storage.staging import Checkpoint, Staged, stage

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Writing:
    """A checkpoint that a thread writes."""

    step: int
    fresh: Path
    files: Future[dict[str, Any]]
    """Of this process."""


class Checkpoints:
    """The checkpoints in a folder, of which the last `keep` are kept.

    process: rank and number of the processes that write a checkpoint together: all of them for a
    sharded policy, else (0, 1). Methods that write are collectives of these.
    """

    def __init__(self, folder: Path, *, keep: int = 1, process: tuple[int, int] = (0, 1)) -> None:
        self.folder, self.keep, self._process = folder, keep, process
        self._written: set[Path] = set()
        self._writing: _Writing | None = None
        self._thread: ThreadPoolExecutor | None = None

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write the checkpoint of a step; then remove all but the last `keep`.

        Those of later steps are removed, too: they are incomplete, or from before the run was
        resumed at an earlier step.
        """
        self.finish()
        fresh = self._room(step)
        if fresh is not None:
            with self._removed_on_failure(fresh):
                files = self._each(lambda: stage(checkpoint, self._process).write(fresh))
                self._complete(step, fresh, files)
        return self._path(step)

    def begin(self, step: int, checkpoint: Checkpoint) -> None:
        """Write the checkpoint of a step in a thread, of copies of its tensors in CPU memory; as
        `save` does where there is no memory for these."""
        self.finish()
        fresh = self._room(step)
        if fresh is None:
            return
        with self._removed_on_failure(fresh):
            staged = stage(checkpoint, self._process, beside=True)
            if not all(self._each(lambda: staged.is_copied)):
                self._complete(step, fresh, self._each(lambda: staged.write(fresh)))
                return
        self._thread = self._thread or ThreadPoolExecutor(1, "checkpoint")
        files = self._thread.submit(self._write, step, staged, fresh)
        self._writing = _Writing(step=step, fresh=fresh, files=files)

    def finish(self, *, wait: bool = True) -> bool:
        """Complete the checkpoint that a thread writes; whether none is being written any more.

        wait: for the thread of every process; else nothing is done before all of them are ready.
        Raises what the thread raised.
        """
        writing = self._writing
        if writing is None:
            return True
        if not wait and not all(self._each(writing.files.done)):
            return False
        self._writing = None
        with self._removed_on_failure(writing.fresh):
            files = self._each(writing.files.result)
            if len(files) > 1:
                self._complete(writing.step, writing.fresh, files)
        return True

    def _write(self, step: int, staged: Staged, fresh: Path) -> dict[str, Any]:
        """Write this process's part, and complete the checkpoint if it is the whole."""
        files = staged.write(fresh)
        if self._process[1] == 1:
            self._complete(step, fresh, [files])
        return files

    def close(self) -> None:
        """Wait for the thread of this process; where several write, only `finish` completes."""
        if self._thread is not None:
            self._thread.shutdown()

    def _path(self, step: int) -> Path:
        return self.folder / f"step_{step}"

    def _room(self, step: int) -> Path | None:
        """A new folder for a checkpoint's files; None if the checkpoint exists already."""
        target, fresh = self._path(step), self.folder / f"step_{step}.new"
        if target not in self._written and self._first(partial(_make_room, target, fresh)):
            return fresh
        self._kept(step)
        return None

    @contextmanager
    def _removed_on_failure(self, fresh: Path) -> Iterator[None]:
        try:
            yield
        except Exception:
            if self._process[0] == 0:
                remove(fresh)  # frees space if the disk is full
            raise

    def _complete(self, step: int, fresh: Path, files: Sequence[Mapping[str, Any]]) -> None:
        """Name a checkpoint whose files are written, then remove what it replaces."""
        self._first(partial(_finish, fresh, self._path(step), files))
        self._kept(step)

    def _kept(self, step: int) -> None:
        self._written.add(self._path(step))
        self._first(partial(self._clear, step))

    def _first(self, call: Callable[[], T]) -> T:
        return call() if self._process[1] == 1 else processes.first(call, patient=True)

    def _each(self, call: Callable[[], T]) -> list[T]:
        return [call()] if self._process[1] == 1 else processes.each(call, patient=True)

    def _clear(self, step: int) -> None:
        """Remove all except the last `keep` whole checkpoints up to this step."""
        whole = [path for path in self._all() if step_of(path) <= step and not problem(path)]
        for path in _inside(self.folder):
            if step_of(path) >= 0 and path not in whole[-self.keep :]:
                _remove(path)

    def last(self) -> Path:
        """The folder of the last whole checkpoint. Raises UserError if there is none."""
        whole = [path for path in self._all() if not problem(path)]
        if not whole:
            broken = ": all of them are incomplete or damaged" if self._all() else ""
            raise UserError(f"no checkpoint in {self.folder}{broken}")
        return whole[-1]

    def load(
        self,
        names: Collection[str] | None = None,
        *,
        check: Callable[[Mapping[str, Any]], None] = lambda _: None,
        step: int | None = None,
    ) -> Saved:
        """Load the last checkpoint that can be read, or that of a step; of its tensors, the files
        of these names.

        A collective: the first process chooses the checkpoint for all. check: raises ValueError for
        an invalid state. Raises UserError if there is no checkpoint, or none can be read.
        """
        path, passed = self._choose(names, check, step)
        return replace(read(path, names), passed=tuple(passed))

    def _choose(
        self,
        names: Collection[str] | None,
        check: Callable[[Mapping[str, Any]], None],
        step: int | None,
    ) -> tuple[Path, list[str]]:
        """The last checkpoint that can be read, of all or of this step, and what is wrong with
        later ones."""
        passed: list[str] = []
        for path in reversed(processes.first(partial(self._candidates, step))):
            every = processes.each(partial(examined, path, names, check), patient=True)
            odd = next((problem for problem in every if problem is not None), None)
            if odd is None:
                return path, passed
            if (path / FILES).exists():  # else its writing was interrupted: nothing to report
                passed.append(f"{path} is damaged and was skipped: {odd}")
        raise UserError(f"no checkpoint in {self.folder} can be read: {'; '.join(passed)}")

    def _candidates(self, step: int | None) -> list[Path]:
        """All checkpoints, or that of a step. Raises UserError if there are none."""
        self.last()
        every = [path for path in self._all() if step is None or step_of(path) == step]
        if not every:
            steps = ", ".join(str(step_of(path)) for path in self._all())
            raise UserError(
                f"no checkpoint of step {step} in {self.folder}, which has those of {steps}; "
                f"train.keep_checkpoints says how many a run keeps"
            )
        return every

    def _all(self) -> list[Path]:
        """All checkpoints by step, also incomplete ones."""
        named = [path for path in _inside(self.folder) if step_of(path) >= 0 and not path.suffix]
        return sorted(named, key=step_of)


def _make_room(target: Path, fresh: Path) -> bool:
    """Make the folder for a new checkpoint; False if the checkpoint exists already."""
    if problem(target, contents=True) is None:
        return False
    for path in (fresh, target):  # left by an interrupted save
        remove(path)
    fresh.parent.mkdir(exist_ok=True)  # and not its parents: a run's folder that is gone stays so
    fresh.mkdir()
    return True


def _finish(fresh: Path, target: Path, files: Sequence[Mapping[str, Any]]) -> None:
    """Write the list of all processes' files, and give the folder its final name."""
    write_list(fresh, {name: file for part in files for name, file in part.items()})
    fresh.rename(target)
    sync(target.parent)


def _remove(folder: Path) -> None:
    """Remove a checkpoint, its list of files first, so that an interrupted removal leaves none."""
    if not folder.is_symlink():
        (folder / FILES).unlink(missing_ok=True)
    remove(folder)


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
