"""Checkpoints: everything that a run needs to continue as if it had never stopped, without pickle.

The randomness of a sample is a function of (seed, draw, index), so no generator is saved. A
checkpoint has the weights, the optimizer's state, the position in the prompts, the step, and the
state of any other part that has one.

Each is a folder, renamed to `step_N` when all of it is on the disk. A list of its files, with sizes
and checksums, is written last: so a checkpoint that was interrupted by a kill or a full disk, or
damaged later, is recognised and skipped.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from groupwise.kit import processes
from groupwise.kit.errors import UserError
from groupwise.policy import Policy
from groupwise.storage.disk import read_json, reason, remove, sync
from groupwise.storage.inventory import FILES, files_in, problem, sizes_and_checksums, write_list
from groupwise.storage.state import decode, encode
from groupwise.storage.tensors import Stored, files_of, write
from groupwise.weights import kept_parameters

T = TypeVar("T")

KEPT = "kept_"
"""Prefix of the files of kept weights, such as `kept_average`."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The content of a checkpoint to write.

    tensors: by file ("weights", "optimizer", "kept_average"), tensors by name; state: the rest.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The content of a checkpoint that was read; its tensors are loaded lazily.

    passed: what is wrong with later checkpoints, which were skipped.
    """

    tensors: Mapping[str, Stored]
    state: Mapping[str, Any]
    passed: tuple[str, ...] = ()


class Checkpoints:
    """The checkpoints in a folder, of which the last `keep` are kept.

    process: rank and number of the processes that write a checkpoint together: all of them for a
    sharded policy, else (0, 1).
    """

    def __init__(self, folder: Path, *, keep: int = 1, process: tuple[int, int] = (0, 1)) -> None:
        self.folder, self.keep, self._process = folder, keep, process
        self._written: set[Path] = set()

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write the checkpoint of a step; then remove all but the last `keep`.

        Those of later steps are removed, too: they are incomplete, or from before the run was
        resumed at an earlier step.
        """
        target, fresh = self.folder / f"step_{step}", self.folder / f"step_{step}.new"
        if target not in self._written and self._first(partial(_make_room, target, fresh)):
            try:
                files = self._each(partial(_write, fresh, checkpoint, self._process))
                self._first(partial(_finish, fresh, target, files))
            except Exception:
                if self._process[0] == 0:
                    remove(fresh)  # frees space if the disk is full
                raise
        self._written.add(target)
        self._first(partial(self._clear, step))
        return target

    def _first(self, call: Callable[[], T]) -> T:
        return call() if self._process[1] == 1 else processes.first(call, patient=True)

    def _each(self, call: Callable[[], T]) -> list[T]:
        return [call()] if self._process[1] == 1 else processes.each(call, patient=True)

    def _clear(self, step: int) -> None:
        """Remove all except the last `keep` whole checkpoints up to this step."""
        whole = [path for path in self._all() if _step(path) <= step and not problem(path)]
        for path in _inside(self.folder):
            if _step(path) >= 0 and path not in whole[-self.keep :]:
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
        return replace(_read(path, names), passed=tuple(passed))

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
            every = processes.each(partial(_examined, path, names, check), patient=True)
            odd = next((problem for problem in every if problem is not None), None)
            if odd is None:
                return path, passed
            if (path / FILES).exists():  # else its writing was interrupted: nothing to report
                passed.append(f"{path} is damaged and was skipped: {odd}")
        raise UserError(f"no checkpoint in {self.folder} can be read: {'; '.join(passed)}")

    def _candidates(self, step: int | None) -> list[Path]:
        """All checkpoints, or that of a step. Raises UserError if there are none."""
        self.last()
        every = [path for path in self._all() if step is None or _step(path) == step]
        if not every:
            steps = ", ".join(str(_step(path)) for path in self._all())
            raise UserError(
                f"no checkpoint of step {step} in {self.folder}, which has those of {steps}; "
                f"train.keep_checkpoints says how many a run keeps"
            )
        return every

    def _all(self) -> list[Path]:
        """All checkpoints by step, also incomplete ones."""
        named = [path for path in _inside(self.folder) if _step(path) >= 0 and not path.suffix]
        return sorted(named, key=_step)


def read_weights(policy: Policy, saved: Saved, *, kept: str | None = None) -> None:
    """Copy a checkpoint's weights, or those kept under a name, into the policy's parameters.

    Raises UserError if it is of another model, or has no such weights.
    """
    name = f"{KEPT}{kept}" if kept else "weights"
    if name not in saved.tensors:
        raise UserError(f"the checkpoint has no weights{f' named {kept!r}' if kept else ''}")
    trained = kept_parameters(policy) if kept else trained_weights(policy)
    with torch.no_grad():
        for key, weight in as_here(trained, saved.tensors[name]).items():
            trained[key].copy_(weight)


def as_here(here: Mapping[str, Tensor], there: Stored) -> dict[str, Tensor]:
    """A checkpoint's tensors, sharded like those of the model here.

    Raises UserError if names or shapes differ.
    """
    if here.keys() != there.keys():
        odd = min(here.keys() ^ there.keys())
        raise UserError(f"the checkpoint is of another model: only one of the two has {odd!r}")
    for name, tensor in here.items():
        if tuple(tensor.shape) != there.shape(name):
            raise UserError(
                f"the checkpoint is of another model: {name!r} has shape "
                f"{list(there.shape(name))} there and {list(tensor.shape)} here"
            )
    return {name: there.like(name, tensor) for name, tensor in here.items()}


def trained_weights(policy: nn.Module) -> Mapping[str, Tensor]:
    """The trained parameters, by name."""
    return {name: p for name, p in policy.named_parameters() if p.requires_grad}


def _step(path: Path) -> int:
    """The step of a checkpoint's folder, finished or `.new`; -1 for anything else.

    So a user's own `step_3_best` or `step_03` is left alone.
    """
    match = re.fullmatch(r"step_(0|[1-9][0-9]*)(\.new)?", path.name)
    return int(match[1]) if match and path.is_dir() else -1


def _make_room(target: Path, fresh: Path) -> bool:
    """Make the folder for a new checkpoint; False if the checkpoint exists already."""
    if problem(target, contents=True) is None:
        return False
    for path in (fresh, target):  # left by an interrupted save
        remove(path)
    fresh.parent.mkdir(exist_ok=True)  # and not its parents: a run's folder that is gone stays so
    fresh.mkdir()
    return True


def _write(folder: Path, checkpoint: Checkpoint, process: tuple[int, int]) -> dict[str, Any]:
    """Write this process's part; returns size and checksum of its files."""
    if not folder.is_dir():
        raise UserError(
            f"process {process[0]} cannot see {folder}: each process writes its part of a sharded "
            f"policy, so `output` must be on a disk that all of them share"
        )
    paths = [
        path for name, of in checkpoint.tensors.items() for path in write(folder, name, of, process)
    ]
    if process[0] == 0:
        state, inside = encode(checkpoint.state, "the state")
        if inside:
            paths += write(folder, "state", inside, (0, 1))
        paths.append(folder / "state.json")
        paths[-1].write_text(json.dumps(state, indent=2), encoding="utf-8")
    return sizes_and_checksums(paths)


def _finish(fresh: Path, target: Path, files: Sequence[Mapping[str, Any]]) -> None:
    """Write the list of all processes' files, and give the folder its final name."""
    write_list(fresh, {name: file for part in files for name, file in part.items()})
    fresh.rename(target)
    sync(target.parent)


def _read(folder: Path, names: Collection[str] | None) -> Saved:
    """Read a checkpoint. Raises OSError, ValueError or SafetensorError if it is damaged."""
    files = files_of(files_in(folder))
    chosen = [name for name in files if names is None or name in {*names, "state"}]
    tensors = {name: Stored([folder / file for file in files[name]]) for name in chosen}
    try:
        state = decode(read_json(folder / "state.json"), tensors.get("state", {}))
    except (KeyError, TypeError) as error:
        raise ValueError(f"state.json refers to a missing tensor: {error}") from error
    if not isinstance(state, dict) or state.get("step", _step(folder)) != _step(folder):
        raise ValueError("state.json is not of this step")
    return Saved(tensors=tensors, state=state)


def _examined(
    path: Path, names: Collection[str] | None, check: Callable[[Mapping[str, Any]], None]
) -> str | None:
    """What is wrong with a checkpoint, by this process's share of its files; None if nothing is.

    Checksums, and whether numbers are finite, take as long as reading the files: so process r of n
    examines every n-th file, and all of them together the whole.
    """
    rank, count = PartialState().process_index, PartialState().num_processes
    try:
        own = sorted(files_in(path))[rank::count]
        odd = problem(path, contents=own)
        if odd is None:
            saved = _read(path, names)
            _check_finite(saved, own)
            check(saved.state)
    except (OSError, ValueError, SafetensorError) as error:
        return reason(error)
    return odd


def _check_finite(saved: Saved, files: Collection[str]) -> None:
    """Raise ValueError for weights or moments in these files that are not finite; reads them all.

    Tensors in the state of rewards or algorithms may have any value.
    """
    for name, tensors in saved.tensors.items():
        for path in tensors.paths if name != "state" else ():
            if path.name in files:
                with safe_open(path, "pt") as file:
                    for key in file.keys():  # noqa: SIM118 - it is no mapping
                        if not bool(file.get_tensor(key).isfinite().all()):
                            raise ValueError(f"{key!r} in {path.name} is not finite")


def _remove(folder: Path) -> None:
    """Remove a checkpoint, its list of files first, so that an interrupted removal leaves none."""
    if not folder.is_symlink():
        (folder / FILES).unlink(missing_ok=True)
    remove(folder)


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
