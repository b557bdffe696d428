"""Checkpoints: everything a run needs to go on as if it had never stopped; no pickle in it.

A sample's randomness is a function of its name (seed, draw, index), so there is no generator to
save: weights, the optimizer's state, the place in the prompts, the step, and the state of whatever
else has one, are all.

Each is a folder `step_N`, which takes that name when everything in it is on the disk. A list of its
files, with sizes and checksums, is written last, so that one that a kill or a full disk left
behind, or that was damaged later, is known and passed over.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from groupwise import processes
from groupwise.errors import UserError
from groupwise.policy import Policy
from groupwise.storage.disk import read_json, reason, remove, sync
from groupwise.storage.inventory import FILES, facts_of, files_in, problem, write_list
from groupwise.storage.state import decode, encode
from groupwise.storage.tensors import Stored, files_of, write

T = TypeVar("T")

KEPT = "kept_"
"""What the files of weights begin with that are kept under a name, `kept_average` for one."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What one is written of.

    tensors: by file ("weights", "optimizer", "kept_average"), each by name; state: the rest.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What one holds; its tensors are read when they are asked for.

    passed: what is wrong with later ones, which were passed over.
    """

    tensors: Mapping[str, Stored]
    state: Mapping[str, Any]
    passed: tuple[str, ...] = ()


class Checkpoints:
    """The checkpoints in a folder, of which the last `keep` stay.

    process: this process's number, and how many write each checkpoint together: those of a sharded
    policy, else one alone.
    """

    def __init__(self, folder: Path, *, keep: int = 1, process: tuple[int, int] = (0, 1)) -> None:
        self.folder, self.keep, self._process = folder, keep, process
        self._written: set[Path] = set()

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write the checkpoint of a step; when it is whole, all others go but the last before it.

        Later ones go, too: they are of a run that was gone on with from before them, or torn.
        """
        target, fresh = self.folder / f"step_{step}", self.folder / f"step_{step}.new"
        if target not in self._written and self._first(partial(_make_room, target, fresh)):
            try:
                files = self._each(partial(_write, fresh, checkpoint, self._process))
                self._first(partial(_finish, fresh, target, files))
            except Exception:
                if self._process[0] == 0:
                    remove(fresh)  # on a full disk every byte counts
                raise
        self._written.add(target)
        self._first(partial(self._clear, step))
        return target

    def _first(self, call: Callable[[], T]) -> T:
        return call() if self._process[1] == 1 else processes.first(call)

    def _each(self, call: Callable[[], T]) -> list[T]:
        return [call()] if self._process[1] == 1 else processes.each(call)

    def _clear(self, step: int) -> None:
        """Remove all but the last whole ones up to this step."""
        whole = [path for path in self._all() if _step(path) <= step and not problem(path)]
        for path in _inside(self.folder):
            if _step(path) >= 0 and path not in whole[-self.keep :]:
                _remove(path)

    def last(self) -> Path:
        """The folder of the last whole one. Raises UserError where there is none."""
        whole = [path for path in self._all() if not problem(path)]
        if not whole:
            torn = ", but none of them is whole" if self._all() else ""
            raise UserError(f"no checkpoint in {self.folder}{torn}")
        return whole[-1]

    def load(
        self,
        names: Collection[str] | None = None,
        *,
        check: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> Saved:
        """What the last one holds that can be read, of the tensors those of these names.

        Called by all processes of a run, of which the first looks which one that is. check: raises
        ValueError for a state that is none. Raises UserError where there is no checkpoint, or none
        can be read.
        """
        path, passed = processes.first(partial(self._choose, names, check))
        return replace(_read(path, names), passed=tuple(passed))

    def _choose(
        self, names: Collection[str] | None, check: Callable[[Mapping[str, Any]], None]
    ) -> tuple[Path, list[str]]:
        """The last one that can be read, and what is wrong with those after it."""
        self.last()
        passed: list[str] = []
        for path in reversed(self._all()):
            odd = problem(path, contents=True)
            if odd is None:
                try:
                    saved = _read(path, names)
                    _check_finite(saved)
                    check(saved.state)
                except (OSError, ValueError, SafetensorError) as error:
                    odd = reason(error)
                else:
                    return path, passed
            if (path / FILES).exists():  # else a kill left it, and nothing of the run is lost
                passed.append(f"{path} is damaged and passed over: {odd}")
        raise UserError(f"no checkpoint in {self.folder} can be read: {'; '.join(passed)}")

    def _all(self) -> list[Path]:
        """By step, those that are not whole included."""
        named = [path for path in _inside(self.folder) if _step(path) >= 0 and not path.suffix]
        return sorted(named, key=_step)


def read_weights(policy: Policy, saved: Saved, *, kept: str | None = None) -> None:
    """Put its weights, or those kept by that name, into the policy's trained parameters.

    Raises UserError where it is of another model, or has no such weights.
    """
    name = f"{KEPT}{kept}" if kept else "weights"
    if name not in saved.tensors:
        raise UserError(f"the checkpoint has no weights{f' named {kept!r}' if kept else ''}")
    trained = policy.keepable() if kept else trained_weights(policy)
    with torch.no_grad():
        for key, weight in as_here(trained, saved.tensors[name]).items():
            trained[key].copy_(weight)


def as_here(here: Mapping[str, Tensor], there: Stored) -> dict[str, Tensor]:
    """A checkpoint's tensors, divided among processes as those of a model here are.

    Raises UserError where names or shapes differ.
    """
    if here.keys() != there.keys():
        odd = min(here.keys() ^ there.keys())
        raise UserError(f"the checkpoint is of another model: they differ in {odd!r}")
    for name, tensor in here.items():
        if tuple(tensor.shape) != there.shape(name):
            raise UserError(
                f"the checkpoint is of another model: {name!r} is "
                f"{list(there.shape(name))} there and {list(tensor.shape)} here"
            )
    return {name: there.like(name, tensor) for name, tensor in here.items()}


def trained_weights(policy: nn.Module) -> Mapping[str, Tensor]:
    """The parameters that are trained, by name."""
    return {name: p for name, p in policy.named_parameters() if p.requires_grad}


def _step(path: Path) -> int:
    """The step of a checkpoint, or of what was to become one; -1 for anything else.

    A user's own `step_3_best` or `step_03` is neither.
    """
    match = re.fullmatch(r"step_(0|[1-9][0-9]*)(\.new)?", path.name)
    return int(match[1]) if match and path.is_dir() else -1


def _make_room(target: Path, fresh: Path) -> bool:
    """Whether a checkpoint is to be written, since it is not there yet; and the folder for it."""
    if problem(target, contents=True) is None:
        return False
    for path in (fresh, target):  # of a save that was killed
        remove(path)
    fresh.mkdir(parents=True)
    return True


def _write(folder: Path, checkpoint: Checkpoint, process: tuple[int, int]) -> dict[str, Any]:
    """Write what this process holds; size and checksum of each of its files."""
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not there on process {process[0]}: each process writes its part of a "
            f"sharded policy, so `output` must lie on a disk that all of them share"
        )
    paths = [write(folder, name, of, process) for name, of in checkpoint.tensors.items()]
    if process[0] == 0:
        state, inside = encode(checkpoint.state, "the state")
        if inside:
            paths.append(write(folder, "state", inside, (0, 1)))
        paths.append(folder / "state.json")
        paths[-1].write_text(json.dumps(state, indent=2), encoding="utf-8")
    return facts_of(paths)


def _finish(fresh: Path, target: Path, files: Sequence[Mapping[str, Any]]) -> None:
    """List the files of all processes, and give the folder its name."""
    write_list(fresh, {name: facts for part in files for name, facts in part.items()})
    fresh.rename(target)
    sync(target.parent)


def _read(folder: Path, names: Collection[str] | None) -> Saved:
    """Raises OSError, ValueError or SafetensorError where it is not what was written."""
    files = files_of(files_in(folder))
    wanted = [name for name in files if names is None or name in {*names, "state"}]
    tensors = {name: Stored([folder / file for file in files[name]]) for name in wanted}
    try:
        state = decode(read_json(folder / "state.json"), tensors.get("state", {}))
    except (KeyError, TypeError) as error:
        raise ValueError(f"state.json refers to a tensor that is not there: {error}") from error
    if not isinstance(state, dict) or state.get("step", _step(folder)) != _step(folder):
        raise ValueError("state.json is not of this step")
    return Saved(tensors=tensors, state=state)


def _check_finite(saved: Saved) -> None:
    """Raise ValueError where weights are not, or pieces of them are missing.

    What a reward or an algorithm keeps in its state may be anything.
    """
    for name, tensors in saved.tensors.items():
        for key in tensors if name != "state" else ():
            if not bool(tensors[key].isfinite().all()):
                raise ValueError(f"{key!r} in {name}.safetensors is not finite")


def _remove(folder: Path) -> None:
    """The list first: what a kill leaves of the others is then no checkpoint."""
    if not folder.is_symlink():
        (folder / FILES).unlink(missing_ok=True)
    remove(folder)


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
