"""RunFolder: the folder that a run writes to: its lock, and what happens to an older run in it."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from groupwise.config.load import LoadedConfig
from groupwise.kit import processes, terminal
from groupwise.kit.errors import UserError
from groupwise.storage.disk import readable_record, reason, remove
from groupwise.storage.files import (
    CHECKPOINTS,
    FORMER_CONFIG,
    LOCK,
    MODEL,
    RESULT,
    RUN_FILES,
    RUN_INFO,
)
from groupwise.storage.lock import FolderLock
from groupwise.storage.run_info import callback_files, first_free, identity, values

PATIENCE = 120
"""Seconds that a restarted run waits for the lock of the process before it. An NFS server releases
the locks of a dead machine after about 90 s."""
Resume = bool | Literal["auto"]
"""Whether to resume a run; "auto": resume if it has a checkpoint, else start it."""


class RunFolder:
    """A run's folder; a context manager that locks it against other processes.

    An older run that is to be replaced is moved aside, and restored if the new run does not make a
    step. Files that no run wrote are never removed.

    folder: absolute, since a reward may change the current folder; shown: as the user named it.
    resume: with "auto" determined when the context is entered.
    """

    def __init__(self, loaded: LoadedConfig, *, resume: Resume, overwrite: bool) -> None:
        self.loaded, self.shown = loaded, loaded.config.output
        self.folder = self.shown.absolute()
        self.auto = resume == "auto"
        self.resume, self.overwrite = resume is True, overwrite
        self.identity = uuid.uuid4().hex
        patience = PATIENCE if self.auto else 0
        self._lock = FolderLock(self.folder, self.shown, patience=patience)
        self._aside: Path | None = None

    def __enter__(self) -> Self:
        """Raises UserError if the folder cannot be used, is in use, or is missing for a resume."""
        try:
            if self.auto:
                self.resume = _has_checkpoint(self.folder)
            self._check()
            if self.folder.is_dir():
                self._lock.acquire()
                if self.auto:  # the process before may have written its first checkpoint meanwhile
                    self.resume = _has_checkpoint(self.folder)
        except OSError as error:
            raise UserError(f"output: {self.shown}: {reason(error)}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        """Release the lock; restore an older run that the new one did not replace."""
        try:
            if self._aside is not None:
                self._bring_back(self._aside)
        finally:
            self._lock.release()

    def make(self) -> None:
        """Make the folder, empty except for the lock. Raises UserError if that fails."""
        if self.resume:
            self.identity = identity(self.folder) or self.identity
            return
        try:
            if self._entries():
                self._move_aside()
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"output: cannot make {self.shown}: {reason(error)}") from error
        if not self._lock.is_held:
            self._lock.acquire()
        if self._entries():
            raise UserError(f"output: another run has begun in {self.shown}")

    @contextmanager
    def writing(self, *, together: bool = False) -> Iterator[None]:
        """To be entered by the first process for every write.

        Raises UserError if the folder or lock is lost, before or meanwhile.

        together: whether all processes enter it, for a write that they share.
        """
        if together:
            processes.first(self.keep)
        else:
            self.keep()
        try:
            yield
        except Exception as error:
            if not self.is_gone:
                raise
            self._remove_remains()
            raise UserError(self._loss) from error

    def keep(self) -> None:
        """Raise UserError if the folder or lock is lost."""
        if self._lock.is_held:
            return
        if self._lock.is_taken:
            raise UserError(
                f"{LOCK} was removed from {self.shown} while the run wrote to it, and the folder "
                f"is now used{self._lock.holder}: nothing more is written"
            )
        if self.is_gone:
            raise UserError(self._loss)
        self._lock.acquire()

    @property
    def _loss(self) -> str:
        return (
            f"{self.shown} is gone: it was moved or removed while the run wrote to it, so nothing "
            f"more is written; a moved run can be resumed where it is now"
        )

    @property
    def is_gone(self) -> bool:
        """Whether the folder was moved or removed, or emptied."""
        return not (self.folder / RUN_INFO).exists()

    @property
    def is_lost(self) -> bool:
        """Whether the folder is gone, or another process has it."""
        return self.is_gone or self._lock.is_taken

    def _remove_remains(self) -> None:
        """Remove what a policy wrote that made the folder again: it would pass for a run."""
        if not self._lock.is_taken:
            remove(self.folder / f"{MODEL}.new")
            with suppress(OSError):  # there is more in it, or there is none
                self.folder.rmdir()

    def begun(self) -> str | None:
        """To be called after the first step: remove the older run; a note on files left of it."""
        aside, self._aside = self._aside, None
        if aside is None:
            return None
        for path in _own(aside):
            remove(path)
        left = ", ".join(sorted(path.name for path in aside.iterdir()))
        if not left:
            aside.rmdir()
            return None
        moved = self.shown.with_name(aside.name)
        return f"files that no run wrote were moved from {self.shown} to {moved}: {left}"

    def left_over(self) -> str | None:
        """A note about older runs beside the folder that were moved aside and not removed."""
        name = re.compile(re.escape(self.folder.name) + r"(_\d+)?\.replaced")
        beside = self.folder.parent.glob("*.replaced")
        names = [path.name for path in beside if name.fullmatch(path.name) and path != self._aside]
        if not names:
            return None
        left = ", ".join(str(self.shown.with_name(name)) for name in sorted(names))
        return f"{left}: left over from runs that were replaced; no run needs it"

    # ---- checks

    def _check(self) -> None:
        """Raise UserError if the folder cannot be used, or is missing for a resume."""
        folder, shown = self.folder, self.shown
        if not _is_name(str(folder)):
            raise UserError(
                f"output: expected a folder with a name in UTF-8, found {str(folder)!r}; choose "
                f"another by output=FOLDER"
            )
        if self.resume and not folder.is_dir():
            raise UserError(f"nothing to resume: there is no {shown}")
        if self.resume and "groupwise" not in readable_record(folder / RUN_INFO):
            raise UserError(f"nothing to resume: {shown} has no readable {RUN_INFO} of a run")
        if os.path.lexists(folder) and not folder.is_dir():
            raise UserError(f"output: {shown} is a file; choose another by output=FOLDER")
        if not self.resume:
            self._check_apart()
            self._check_replaceable()

    def _check_apart(self) -> None:
        """Refuse a folder inside another run's folder, which that run may replace or move."""
        for parent in self.folder.resolve().parents:
            if "groupwise" in readable_record(parent / RUN_INFO):
                raise UserError(
                    f"output: {self.shown} lies in {parent}, the folder of another run; choose "
                    f"another folder by output=FOLDER"
                )

    # ---- an older run

    def _entries(self) -> list[Path]:
        """The content of the folder, except the lock."""
        inside = self.folder.iterdir() if self.folder.is_dir() else ()
        return [path for path in inside if path.name != LOCK]

    def _check_replaceable(self) -> None:
        entries = self._entries()
        if not entries:
            return
        folder, shown, info = self.folder, self.shown, readable_record(self.folder / RUN_INFO)
        names = {path.name for path in entries}
        # A run killed at its very start has written only this.
        of_run = "groupwise" in info or names == {f"{RUN_INFO}.new"}
        of_run_alone = names <= {path.name for path in _own(folder)}
        unbegun = of_run_alone and not {MODEL, RESULT} & names and not _has_checkpoint(folder)
        if not self.overwrite and not (of_run and unbegun):
            go_on = f"resume it by `groupwise resume {shown}`, replace it by --overwrite, or "
            raise UserError(
                f"{shown} exists; {go_on if of_run else ''}choose another folder by output=FOLDER"
            )
        if not of_run:
            raise UserError(
                f"--overwrite replaces only runs, and {shown} is none: it has no {RUN_INFO} of a "
                f"run; choose another folder by output=FOLDER"
            )
        if folder.is_symlink():
            raise UserError(
                f"output: {shown} is a symbolic link to {folder.resolve()}, through which no run "
                f"is replaced; set output={folder.resolve()}"
            )
        self._check_unread()

    def _check_unread(self) -> None:
        """Refuse to replace files that this run reads: its configuration, data or model."""
        replaced, base = self.folder.resolve(), self.loaded.folder
        read = {"the configuration": Path(self.loaded.origin.source), "this process": Path.cwd()}
        for key, value in values(self.loaded.config.model_dump()):
            if isinstance(value, str | Path) and key != "output":
                read[key] = base / value
        for key, path in read.items():
            try:
                resolved = path.resolve()
                inside = resolved == replaced or replaced in resolved.parents
                there = inside and resolved.exists()
            except (OSError, ValueError):  # a text that is no path
                continue
            if there:
                raise UserError(
                    f"output: {self.shown} cannot be replaced: {key} lies in it ({path}); "
                    f"choose another folder by output=FOLDER"
                )

    def _move_aside(self) -> None:
        aside = first_free(self.folder.with_name(f"{self.folder.name}.replaced"))
        self.folder.rename(aside)
        self._aside = aside

    def _bring_back(self, aside: Path) -> None:
        """Remove the new run's files and move the older run back."""
        for path in _own(self.folder) if self.folder.is_dir() else ():
            remove(path)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()
        if os.path.lexists(self.folder):
            moved = self.shown.with_name(aside.name)
            terminal.say(f"note: the run that was in {self.shown} is in {moved}")
        else:
            aside.rename(self.folder)


def _is_name(text: str) -> bool:
    """Whether it is a file name in UTF-8, which libraries that write weights require."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _own(folder: Path) -> Iterator[Path]:
    """The files in it that a run and its callbacks wrote, finished or not."""
    own = RUN_FILES | callback_files(folder)
    for path in list(folder.iterdir()):
        older = FORMER_CONFIG.fullmatch(path.name)
        if older or path.name in own or path.name.removesuffix(".new") in own:
            yield path


def _has_checkpoint(folder: Path) -> bool:
    """Whether there is a finished checkpoint, damaged or not."""
    lists = (folder / CHECKPOINTS).glob("step_*/files.json")
    return any(not path.parent.suffix for path in lists)
