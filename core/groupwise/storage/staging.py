"""Staging: what a process writes of a checkpoint, copied, so that training can go on meanwhile."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from torch import Tensor

from groupwise.kit.errors import UserError
from groupwise.storage.inventory import sizes_and_checksums
from groupwise.storage.state import encode
from groupwise.storage.tensors import Part, part_of

SPARE = 1.25
"""How many times the bytes of the copies must be free, or they are made one file at a time."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The content of a checkpoint to write.

    tensors: by file ("weights", "optimizer", "kept_average"), tensors by name; state: the rest.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What one process writes of a checkpoint."""

    process: tuple[int, int]
    """Its rank, and the number of the processes that write."""
    parts: Mapping[str, Callable[[], Part | None]]
    """By file, the tensors in CPU memory."""
    state: str
    """As JSON."""
    is_copied: bool
    """Whether nothing that changes is read any more."""

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the files; returns the size and checksum of each."""
        if not folder.is_dir():
            raise UserError(
                f"process {self.process[0]} cannot see {folder}: each process writes its part of a "
                f"sharded policy, so `output` must be on a disk that all of them share"
            )
        paths = []
        for name, make in self.parts.items():
            part = make()  # one at a time, where they are not copied yet
            if part is not None:
                paths.append(part.write(folder, name))
        if self.process[0] == 0:
            paths.append(folder / "state.json")
            paths[-1].write_text(self.state, encoding="utf-8")
        return sizes_and_checksums(paths)


def stage(checkpoint: Checkpoint, process: tuple[int, int], *, beside: bool = False) -> Staged:
    """A process's part of a checkpoint.

    beside: copy all of it at once, if there is memory for that, so that it can be written while
    tensors change; else one file is copied after the other as it is written.
    """
    state, inside = encode(checkpoint.state, "the state")
    parts = {name: partial(part_of, of, process) for name, of in checkpoint.tensors.items()}
    if inside and process[0] == 0:
        parts["state"] = partial(part_of, inside, (0, 1))
    copied = beside and _fits(checkpoint)
    return Staged(
        process=process,
        parts={name: _made(part) for name, part in parts.items()} if copied else parts,
        state=json.dumps(state, indent=2),
        is_copied=copied,
    )


def _fits(checkpoint: Checkpoint) -> bool:
    tensors = [tensor for of in checkpoint.tensors.values() for tensor in of.values()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return SPARE * size < psutil.virtual_memory().available


def _made(part: Callable[[], Part | None]) -> Callable[[], Part | None]:
    made = part()
    return lambda: made
