"""Checkpoints: everything a run needs to go on as if it had never stopped; no pickle in it.

A sample's randomness is a function of its name (seed, draw, index), so there is no generator to
save: weights, the optimizer's state, the place in the prompts, the step, and the state of whatever
else has one, are all.

Each is a folder `step_N`, which takes that name when everything in it is on the disk. A list of its
files, with sizes and checksums, is written last, so that one that a kill or a full disk left
behind, or that was damaged later, is known and passed over.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groupwise.errors import UserError
from groupwise.storage.disk import read_json, reason, remove, sync
from groupwise.storage.state import decode, encode, on_cpu

FILES = "files.json"
"""Names, sizes and checksums of the others."""
KEPT = "kept_"
"""What the files of weights begin with that are kept under a name, `kept_average` for one."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What one holds.

    tensors: by file ("weights", "optimizer", "kept_average"), each by name; state: the rest.
    passed: what is wrong with later ones, which were passed over.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]
    passed: tuple[str, ...] = ()


class Checkpoints:
    """The checkpoints in a folder, of which the last `keep` stay."""

    def __init__(self, folder: Path, *, keep: int = 1) -> None:
        self.folder, self.keep = folder, keep
        self._written: set[Path] = set()

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write the checkpoint of a step; when it is whole, all others go but the last before it.

        Later ones go, too: they are of a run that was gone on with from before them, or torn.
        """
        target = self.folder / f"step_{step}"
        if target not in self._written and _problem(target, contents=True):
            fresh = self.folder / f"step_{step}.new"
            for path in (fresh, target):  # of a save that was killed
                remove(path)
            fresh.mkdir(parents=True)
            try:
                _write(fresh, checkpoint)
            except Exception:
                remove(fresh)  # on a full disk every byte counts
                raise
            fresh.rename(target)
            sync(self.folder)
        self._written.add(target)
        whole = [path for path in self._all() if _step(path) <= step and not _problem(path)]
        for path in _inside(self.folder):
            if _step(path) >= 0 and path not in whole[-self.keep :]:
                _remove(path)
        return target

    def last(self) -> Path:
        """The folder of the last whole one. Raises UserError where there is none."""
        whole = [path for path in self._all() if not _problem(path)]
        if not whole:
            torn = ", but none of them is whole" if self._all() else ""
            raise UserError(f"no checkpoint in {self.folder}{torn}")
        return whole[-1]

    def load(
        self,
        names: Collection[str] | None = None,
        *,
        check: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> Checkpoint:
        """What the last one holds that can be read, of the tensors those of these names.

        check: raises ValueError for a state that is none. Raises UserError where there is no
        checkpoint, or none can be read.
        """
        self.last()
        passed: list[str] = []
        for path in reversed(self._all()):
            problem = _problem(path, contents=True)
            if problem is None:
                try:
                    checkpoint = _read(path, names)
                    check(checkpoint.state)
                except (OSError, ValueError, SafetensorError) as error:
                    problem = reason(error)
                else:
                    return replace(checkpoint, passed=tuple(passed))
            if (path / FILES).exists():  # else a kill left it, and nothing of the run is lost
                passed.append(f"{path} is damaged and passed over: {problem}")
        raise UserError(f"no checkpoint in {self.folder} can be read: {'; '.join(passed)}")

    def _all(self) -> list[Path]:
        """By step, those that are not whole included."""
        named = [path for path in _inside(self.folder) if _step(path) >= 0 and not path.suffix]
        return sorted(named, key=_step)


def read_weights(policy: nn.Module, checkpoint: Checkpoint, *, kept: str | None = None) -> None:
    """Put its weights, or those kept by that name, into the policy's trained parameters.

    Raises UserError where it is of another model, or has no such weights.
    """
    name = f"{KEPT}{kept}" if kept else "weights"
    if name not in checkpoint.tensors:
        raise UserError(f"the checkpoint has no weights{f' named {kept!r}' if kept else ''}")
    weights, trained = checkpoint.tensors[name], trained_weights(policy)
    check_same(trained, weights)
    with torch.no_grad():
        for key, parameter in trained.items():
            parameter.copy_(weights[key])


def check_same(here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> None:
    """Raise UserError where the names or shapes of a model's weights and a checkpoint's differ."""
    if here.keys() != there.keys():
        odd = min(here.keys() ^ there.keys())
        raise UserError(f"the checkpoint is of another model: they differ in {odd!r}")
    for name, tensor in here.items():
        if tensor.shape != there[name].shape:
            raise UserError(
                f"the checkpoint is of another model: {name!r} is "
                f"{list(there[name].shape)} there and {list(tensor.shape)} here"
            )


def trained_weights(policy: nn.Module) -> dict[str, Tensor]:
    """The parameters that are trained, by name."""
    return {name: p for name, p in policy.named_parameters() if p.requires_grad}


def _step(path: Path) -> int:
    """The step of a checkpoint, or of what was to become one; -1 for anything else.

    A user's own `step_3_best` or `step_03` is neither.
    """
    match = re.fullmatch(r"step_(0|[1-9][0-9]*)(\.new)?", path.name)
    return int(match[1]) if match and path.is_dir() else -1


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    state, inside = encode(checkpoint.state, "the state")
    for name, tensors in {**checkpoint.tensors, **({"state": inside} if inside else {})}.items():
        save_file(on_cpu(tensors), folder / f"{name}.safetensors")
    (folder / "state.json").write_text(json.dumps(state, indent=2), encoding="utf-8")
    files = {}
    for path in _inside(folder):
        sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _checksum(path)}
    (folder / FILES).write_text(json.dumps(files, indent=2), encoding="utf-8")
    sync(folder / FILES)
    sync(folder)


def _read(folder: Path, names: Collection[str] | None) -> Checkpoint:
    """Raises OSError, ValueError or SafetensorError where it is not what was written."""
    files = [Path(name).stem for name in _files(folder) if name.endswith(".safetensors")]
    wanted = [name for name in files if names is None or name in {*names, "state"}]
    tensors = {name: load_file(folder / f"{name}.safetensors") for name in wanted}
    for name in wanted:
        # What a reward or an algorithm keeps in its state may be anything; weights are finite.
        for key, tensor in tensors[name].items() if name != "state" else ():
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"{key!r} in {name}.safetensors is not finite")
    try:
        state = decode(read_json(folder / "state.json"), tensors.get("state", {}))
    except (KeyError, TypeError) as error:
        raise ValueError(f"state.json refers to a tensor that is not there: {error}") from error
    if not isinstance(state, dict) or state.get("step", _step(folder)) != _step(folder):
        raise ValueError("state.json is not of this step")
    return Checkpoint(tensors=tensors, state=state)


def _problem(folder: Path, *, contents: bool = False) -> str | None:
    """Why a folder is no whole checkpoint, by its files' sizes; None where it is one.

    contents: compare their checksums, too, which takes as long as reading them.
    """
    try:
        files = _files(folder)
        for name, (size, checksum) in files.items():
            length = (folder / name).stat().st_size
            if length != size:
                return f"{name} has {length} bytes, {size} were written"
            if contents and _checksum(folder / name) != checksum:
                return f"{name} is not what was written"
    except (OSError, ValueError) as error:
        return reason(error)
    return None


def _files(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and checksum of each file. Raises ValueError or OSError where there is no such list."""
    files = read_json(folder / FILES)
    try:
        sizes = {name: (int(file["bytes"]), str(file["sha256"])) for name, file in files.items()}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{folder / FILES} is no list of files") from error
    for name in sizes:
        if Path(name).name != name:
            raise ValueError(f"{folder / FILES} names {name!r}, which lies elsewhere")
    return sizes


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove(folder: Path) -> None:
    """The list first: what a kill leaves of the others is then no checkpoint."""
    if not folder.is_symlink():
        (folder / FILES).unlink(missing_ok=True)
    remove(folder)


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
