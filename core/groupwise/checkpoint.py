"""Checkpoints: everything a run needs to go on as if it had never stopped; no pickle in it.

A sample's randomness is a function of its name (seed, draw, index), so there is no generator to
save: weights, the optimizer's state, the place in the prompts, the step, and the state of whatever
else has one, are all.

Each is a folder `step_N`, which takes that name when everything in it is on the disk. A list of its
files and their sizes is written last, so that one that a kill or a full disk left behind is known
and passed over.
"""

import json
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groupwise.errors import UserError
from groupwise.state import decode, encode, on_cpu

FILES = "files.json"
"""Names and sizes of the others."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What one holds.

    tensors: by file ("weights", "optimizer", "average"), each by name; state: the rest.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


class Checkpoints:
    """The checkpoints in a folder, of which the last `keep` stay."""

    def __init__(self, folder: Path, *, keep: int = 1) -> None:
        self.folder, self.keep = folder, keep

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write the checkpoint of a step; when it is whole, all others go but the last before it.

        Later ones go, too: they are of a run that was gone on with from before them, or torn.
        """
        target = self.folder / f"step_{step}"
        if not _is_whole(target):
            fresh = self.folder / f"step_{step}.new"
            for path in (fresh, target):  # of a save that was killed
                shutil.rmtree(path, ignore_errors=True)
            fresh.mkdir(parents=True)
            _write(fresh, checkpoint)
            fresh.rename(target)
            _sync(self.folder)
        whole = [path for path in self._all() if _step(path) <= step and _is_whole(path)]
        for path in _inside(self.folder):
            if _step(path) >= 0 and path not in whole[-self.keep :]:
                _remove(path)
        return target

    def last(self) -> Path:
        """The folder of the last whole one. Raises UserError where there is none."""
        whole = [path for path in self._all() if _is_whole(path)]
        if not whole:
            torn = ", but none of them is whole" if self._all() else ""
            raise UserError(f"no checkpoint in {self.folder}{torn}")
        return whole[-1]

    def load(self, names: Collection[str] | None = None) -> Checkpoint:
        """What the last whole one holds, of the tensors those of these names; all if unset."""
        path = self.last()
        files = [Path(name).stem for name in _sizes(path) if name.endswith(".safetensors")]
        wanted = [name for name in files if names is None or name in {*names, "state"}]
        tensors = {name: load_file(path / f"{name}.safetensors") for name in wanted}
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        return Checkpoint(tensors=tensors, state=decode(state, tensors.get("state", {})))

    def _all(self) -> list[Path]:
        """By step, those that are not whole included."""
        named = [path for path in _inside(self.folder) if _step(path) >= 0 and not path.suffix]
        return sorted(named, key=_step)


def read_weights(policy: nn.Module, checkpoint: Checkpoint, *, averaged: bool = False) -> None:
    """Put its weights, or the average of them, into the policy's trained parameters.

    Raises UserError where it is of another model, or has no average.
    """
    if averaged and "average" not in checkpoint.tensors:
        raise UserError("train.ema: the checkpoint has no averaged weights")
    weights = dict(checkpoint.tensors["average" if averaged else "weights"])
    weights.pop("updates", None) if averaged else None
    trained = trained_weights(policy)
    if trained.keys() != weights.keys():
        odd = min(trained.keys() ^ weights.keys())
        raise UserError(f"the checkpoint is of another model: they differ in {odd!r}")
    for name, parameter in trained.items():
        if parameter.shape != weights[name].shape:
            raise UserError(
                f"the checkpoint is of another model: {name!r} is "
                f"{list(weights[name].shape)} there and {list(parameter.shape)} here"
            )
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(weights[name])


def trained_weights(policy: nn.Module) -> dict[str, Tensor]:
    """The parameters that are trained, by name."""
    return {name: p for name, p in policy.named_parameters() if p.requires_grad}


def _step(path: Path) -> int:
    """The step of a checkpoint, or of what was to become one; -1 for anything else."""
    match = re.fullmatch(r"step_(\d+)(\.new)?", path.name)
    return int(match[1]) if match else -1


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    state, inside = encode(checkpoint.state, "the state")
    for name, tensors in {**checkpoint.tensors, **({"state": inside} if inside else {})}.items():
        save_file(on_cpu(tensors), folder / f"{name}.safetensors")
    (folder / "state.json").write_text(json.dumps(state, indent=2), encoding="utf-8")
    sizes = {}
    for path in _inside(folder):
        _sync(path)
        sizes[path.name] = path.stat().st_size
    (folder / FILES).write_text(json.dumps(sizes), encoding="utf-8")
    _sync(folder / FILES)
    _sync(folder)


def _sync(path: Path) -> None:
    """Have what was written on the disk and not only in the system's memory."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _sizes(folder: Path) -> dict[str, int]:
    """The files that belong to a checkpoint with their sizes; none where there is no such list."""
    try:
        sizes: dict[str, int] = json.loads((folder / FILES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return sizes if isinstance(sizes, dict) else {}


def _is_whole(folder: Path) -> bool:
    sizes = _sizes(folder)
    there = {path.name: path.stat().st_size for path in _inside(folder)}
    return bool(sizes) and all(there.get(name) == size for name, size in sizes.items())


def _remove(folder: Path) -> None:
    """The list first: what a kill leaves of the others is then no checkpoint."""
    (folder / FILES).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _inside(folder: Path) -> Sequence[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
