"""Place: the folder a run writes to, held by one process, and taken from an older run with care."""

import datetime as dt
import json
import os
import re
import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from filelock import FileLock, Timeout

from groupwise.config.load import LoadedConfig
from groupwise.errors import UserError
from groupwise.storage.disk import read_record, reason, remove
from groupwise.storage.facts import CONFIG, FACTS, first_free, identity, values

LOCK = "run.lock"
"""Locked while a process writes to the folder; it holds which one that is, or last was."""
CHECKPOINTS, MODEL, RESULT = "checkpoints", "model", "result.json"
TRACKED = ("tracking.json", "tensorboard", "wandb", "mlflow", "swanlab")
"""What trackers write, those that keep local files."""
REST = ("metrics.jsonl", "samples", "report.html", *TRACKED)
OWN = (CONFIG, FACTS, LOCK, CHECKPOINTS, MODEL, RESULT, *REST)
"""Everything that a run writes into its folder, but for older configurations."""
PATIENCE = 120
"""Seconds that a run which was started again waits for the process before it to let go of the
folder: a server of NFS lets go within some 90 s of what a machine held that is gone."""
Resume = bool | Literal["auto"]
"""Whether a run is gone on with; "auto": if it has a checkpoint, and else it begins."""
FORMER = re.compile(r"config\.until_step_[0-9]+(_[0-9]+)?\.yaml")
"""Those: what held until a run was resumed with something else."""


class Place:
    """A run's folder from before the run to its end; a context in which no other process has it.

    An older run that is to be replaced is moved aside, and comes back unless the new run begins.
    What no run wrote is never removed.

    folder: absolute, as a reward may change the current folder; shown: as the user named it.
    resume: with "auto" it is known when the context is entered.
    """

    def __init__(self, loaded: LoadedConfig, *, resume: Resume, overwrite: bool) -> None:
        self.loaded, self.shown = loaded, loaded.config.output
        self.folder = self.shown.absolute()
        self.auto = resume == "auto"
        self.resume, self.overwrite = resume is True, overwrite
        self.identity = uuid.uuid4().hex
        self._aside: Path | None = None
        self._locks: list[FileLock] = []
        self._held: os.stat_result | None = None

    def __enter__(self) -> Self:
        """Raises UserError where the folder is in the way, in use, or missing for a resumption."""
        try:
            if self.auto:
                self.resume = _has_checkpoint(self.folder)
            self._check()
            if self.folder.is_dir():
                self._hold()
                if self.auto:  # who let go of it may have written the first checkpoint until then
                    self.resume = _has_checkpoint(self.folder)
        except OSError as error:
            raise UserError(f"output: {self.shown}: {reason(error)}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        """Lets go of the folder; an older run that the new one did not replace comes back."""
        try:
            if self._aside is not None:
                self._bring_back(self._aside)
        finally:
            for lock in self._locks:
                lock.release()

    def make(self) -> None:
        """The folder, empty but for what holds it. Raises UserError where it cannot be made."""
        if self.resume:
            self.identity = identity(self.folder) or self.identity
            return
        try:
            if self._entries():
                self._move_aside()
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"output: cannot make {self.shown}: {reason(error)}") from error
        if self._aside is not None or not self._locks:
            self._hold()
        if self._entries():
            raise UserError(f"output: another run has begun in {self.shown}")

    def keep(self) -> None:
        """To be called before a step is written. Raises UserError where the folder is lost."""
        if self._is_held():
            return
        if not self.folder.is_dir():
            raise UserError(f"{self.shown} was moved or removed while the run wrote to it")
        if self.taken:
            raise UserError(
                f"{LOCK} was removed from {self.shown} while the run wrote to it, and the folder "
                f"was taken{_by(self.folder)}: nothing more is written"
            )
        self._hold()

    @property
    def taken(self) -> bool:
        """Whether another process has taken the folder, since the lock's file was removed."""
        return (self.folder / LOCK).exists() and not self._is_held()

    def begun(self) -> str | None:
        """To be called when a first step is made: the older run goes, now. What is left of it."""
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
        return f"what no run wrote was moved from {self.shown} to {moved}: {left}"

    def left_over(self) -> str | None:
        """A note about what lies beside: runs that were moved aside, and files of users in them."""
        name = re.compile(re.escape(self.folder.name) + r"(_\d+)?\.replaced")
        beside = self.folder.parent.glob("*.replaced")
        names = [path.name for path in beside if name.fullmatch(path.name) and path != self._aside]
        if not names:
            return None
        left = ", ".join(str(self.shown.with_name(name)) for name in sorted(names))
        return f"{left}: left of runs that were replaced; no run needs it"

    # ---- what is there

    def _check(self) -> None:
        """Raise UserError where the folder is in the way, or missing for a resumption."""
        folder, shown = self.folder, self.shown
        if not _is_name(str(folder)):
            raise UserError(
                f"output: weights are written to folders with names in UTF-8, and "
                f"{str(folder)!r} is none; choose another by output=FOLDER"
            )
        if self.resume and not folder.is_dir():
            raise UserError(f"nothing to resume: there is no {shown}")
        if self.resume and "groupwise" not in _record(folder / FACTS):
            raise UserError(
                f"nothing to resume: {shown} has no {FACTS} that a run wrote and that can be read"
            )
        if os.path.lexists(folder) and not folder.is_dir():
            raise UserError(f"output: {shown} is a file; choose another by output=FOLDER")
        if not self.resume:
            self._check_apart()
            self._check_replaceable()

    def _check_apart(self) -> None:
        """Refuse a folder within a run's, which replaces its parts and is moved as a whole."""
        for parent in self.folder.resolve().parents:
            if "groupwise" in _record(parent / FACTS):
                raise UserError(
                    f"output: {self.shown} lies in {parent}, the folder of another run; choose "
                    f"another folder by output=FOLDER"
                )

    # ---- an older run

    def _entries(self) -> list[Path]:
        """What lies in the folder, but for what holds it."""
        inside = self.folder.iterdir() if self.folder.is_dir() else ()
        return [path for path in inside if path.name != LOCK]

    def _check_replaceable(self) -> None:
        entries = self._entries()
        if not entries:
            return
        folder, shown, facts = self.folder, self.shown, _record(self.folder / FACTS)
        names = {path.name for path in entries}
        # One that was killed in its first moment has written nothing else yet.
        of_run = "groupwise" in facts or names == {f"{FACTS}.new"}
        of_run_alone = names <= {path.name for path in _own(folder)}
        unbegun = of_run_alone and not {MODEL, RESULT} & names and not _has_checkpoint(folder)
        if not self.overwrite and not (of_run and unbegun):
            go_on = f"go on with it by `groupwise resume {shown}`, replace it by --overwrite, or "
            raise UserError(
                f"{shown} exists; {go_on if of_run else ''}choose another folder by output=FOLDER"
            )
        if not of_run:
            raise UserError(
                f"--overwrite replaces runs only, and {shown} is none: it has no {FACTS} that a "
                f"run wrote; choose another folder by output=FOLDER"
            )
        if folder.is_symlink():
            raise UserError(
                f"output: {shown} is a symbolic link to {folder.resolve()}, and no run is "
                f"replaced through one; set output={folder.resolve()}"
            )
        self._check_unread()

    def _check_unread(self) -> None:
        """Refuse to replace what this very run reads: its configuration, data or model."""
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
        """The new run's files go, and the older run takes its place again."""
        for path in _own(self.folder) if self.folder.is_dir() else ():
            remove(path)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()
        if os.path.lexists(self.folder):
            moved = self.shown.with_name(aside.name)
            print(f"note: the run that was in {self.shown} is in {moved}", file=sys.stderr)
        else:
            aside.rename(self.folder)

    # ---- other processes

    def _hold(self) -> None:
        """Raises UserError where another process writes to the folder, or none can."""
        lock = FileLock(self.folder / LOCK, timeout=0)
        try:
            self._acquire(lock)
            self._locks.append(lock)
            holder = {"process": os.getpid(), "host": socket.gethostname(), "since": _now()}
            (self.folder / LOCK).write_text(json.dumps(holder) + "\n", encoding="utf-8")
            self._held = (self.folder / LOCK).stat()
        except Timeout as error:
            raise UserError(
                f"{self.shown} is in use{_by(self.folder)}: wait for it to end, stop it, or "
                f"choose another folder by output=FOLDER"
            ) from error
        except OSError as error:
            raise UserError(f"output: cannot write to {self.shown}: {reason(error)}") from error

    def _acquire(self, lock: FileLock) -> None:
        """Raises Timeout; a run that was started again waits for the process before it first."""
        try:
            lock.acquire()
        except Timeout:
            if not self.auto:
                raise
            print(
                f"note: {self.shown} is in use{_by(self.folder)}: waiting up to {PATIENCE} s",
                file=sys.stderr,
            )
            lock.acquire(timeout=PATIENCE)

    def _is_held(self) -> bool:
        """Whether the file that was locked is the one that now lies in the folder."""
        try:
            there = (self.folder / LOCK).stat()
        except OSError:
            return False
        return self._held is not None and os.path.samestat(there, self._held)


def _is_name(text: str) -> bool:
    """Whether it names a file for libraries, too, that read no names but UTF-8."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _own(folder: Path) -> Iterator[Path]:
    """What a run wrote into it, or was writing when it was killed."""
    for path in folder.iterdir():
        older = FORMER.fullmatch(path.name)
        if older or path.name in OWN or path.name.removesuffix(".new") in OWN:
            yield path


def _has_checkpoint(folder: Path) -> bool:
    """Whether there is one, be it damaged; what a kill left of the first is none."""
    lists = (folder / CHECKPOINTS).glob("step_*/files.json")
    return any(not path.parent.suffix for path in lists)


def _record(path: Path) -> dict[str, Any]:
    """What a file of the run holds; {} where it cannot be read."""
    try:
        return read_record(path)
    except ValueError:
        return {}


def _by(folder: Path) -> str:
    """ " by process 12 on host since ..." where that is known."""
    holder = _record(folder / LOCK)
    if not {"process", "host", "since"} <= holder.keys():
        return ""
    return f" by process {holder['process']} on {holder['host']}, since {holder['since']}"


def _now() -> str:
    return dt.datetime.now().astimezone().isoformat(timespec="seconds")
