"""Tensors on the disk: safetensors files, in which a sharded run's processes hold a part each.

A tensor that is whole lies in `weights.safetensors`, say. Of one that is divided among processes
each writes what it holds to a file of its own, `weights.1-of-4.safetensors`, whose header says
where the piece belongs. What reads them needs not know how many there were: a run goes on with
another number of processes, each of which reads only its own part.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from groupwise.storage.state import on_cpu

FILE = re.compile(r"(?P<name>\w+?)(\.\d+-of-\d+)?\.safetensors")


@dataclass(frozen=True)
class Piece:
    """A part of a tensor of this shape: the places from `start` on along `dim`."""

    shape: tuple[int, ...]
    dim: int = 0
    start: int = 0


def write(folder: Path, name: str, tensors: Mapping[str, Tensor], process: tuple[int, int]) -> Path:
    """Write what this process holds of the tensors; returns the file.

    process: its number, and how many there are, which all write. What is not divided is written by
    the first.
    """
    rank, world = process
    held, places = {}, {}
    for key, tensor in tensors.items():
        piece = piece_of(tensor)
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if world == 1 or (piece is None and rank == 0):
            held[key] = local
        elif piece is not None and local.numel():
            held[key] = local
            places[key] = json.dumps([piece.shape, piece.dim, piece.start])
    number = f".{rank}-of-{world}" if world > 1 else ""
    path = folder / f"{name}{number}.safetensors"
    save_file(on_cpu(held), path, metadata=places or None)
    return path


def piece_of(tensor: Tensor) -> Piece | None:
    """Which part of it this process holds; None where it holds all.

    A dimension is cut as `torch.chunk` cuts it: in equal parts, of which the last may be smaller or
    missing.
    """
    if not isinstance(tensor, DTensor):
        return None
    (placement,) = tensor.placements
    if not isinstance(placement, Shard):
        return None
    mesh, dim = tensor.device_mesh, placement.dim
    size = -(-tensor.shape[dim] // mesh.size())
    start = min(mesh.get_local_rank() * size, tensor.shape[dim])
    return Piece(tuple(tensor.shape), dim, start)


class Stored(Mapping[str, Tensor]):
    """The tensors in files that `write` wrote, each read when it is asked for."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._parts: dict[str, list[tuple[Any, Piece]]] = {}
        for path in sorted(paths):
            file = safe_open(path, framework="pt")
            places = file.metadata() or {}
            for key in file.keys():  # noqa: SIM118 - no mapping
                piece = Piece(tuple(file.get_slice(key).get_shape()))
                if key in places:
                    shape, dim, start = json.loads(places[key])
                    piece = Piece(tuple(shape), dim, start)
                self._parts.setdefault(key, []).append((file, piece))

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, key: str) -> Tensor:
        return self._region(key, slice(None), self._parts[key][0][1].dim)

    def shape(self, key: str) -> tuple[int, ...]:
        """Its shape, without reading it."""
        return self._parts[key][0][1].shape

    def like(self, key: str, tensor: Tensor) -> Tensor:
        """The stored tensor, divided among processes as this one is; each reads its part alone."""
        piece = piece_of(tensor)
        if piece is None or not isinstance(tensor, DTensor):
            return self[key]
        held = tensor.to_local()
        stop = piece.start + held.shape[piece.dim]
        local = self._region(key, slice(piece.start, stop), piece.dim)
        return DTensor.from_local(
            local.to(held.device, held.dtype),
            tensor.device_mesh,
            tensor.placements,
            shape=tensor.shape,
            stride=tensor.stride(),
            run_check=False,
        )

    def _region(self, key: str, wanted: slice, dim: int) -> Tensor:
        """Its places `wanted` along `dim`. Raises ValueError where pieces are missing."""
        parts = self._parts[key]
        file, first = parts[0]
        if not first.shape or (len(parts) == 1 and wanted == slice(None)):
            whole: Tensor = file.get_tensor(key)
            _check_whole(key, first.shape, whole.shape)
            return whole
        start, stop, _ = wanted.indices(first.shape[dim])
        if len(parts) > 1 and first.dim != dim:
            return self[key].narrow(dim, start, stop - start)
        read = [_read(file, key, piece, start, stop) for file, piece in _in_order(parts)]
        region = torch.cat([part for part in read if part is not None], dim=dim)
        _check_whole(key, (*first.shape[:dim], stop - start, *first.shape[dim + 1 :]), region.shape)
        return region


def files_of(names: Iterable[str]) -> dict[str, list[str]]:
    """The files of each name ("weights"), of file names among which there may be others."""
    files: dict[str, list[str]] = {}
    for file in names:
        match = FILE.fullmatch(file)
        if match:
            files.setdefault(match["name"], []).append(file)
    return files


def _in_order(parts: Sequence[tuple[Any, Piece]]) -> list[tuple[Any, Piece]]:
    return sorted(parts, key=lambda part: part[1].start)


def _read(file: Any, key: str, piece: Piece, start: int, stop: int) -> Tensor | None:
    """What a file has of the places start to stop; None where that is nothing."""
    stored = file.get_slice(key)
    size, before = stored.get_shape()[piece.dim], (slice(None),) * piece.dim
    low, high = max(start - piece.start, 0), min(stop - piece.start, size)
    nothing = low >= high and start != stop
    return None if nothing else stored[(*before, slice(low, max(low, high)))]


def _check_whole(key: str, due: Sequence[int], read: Sequence[int]) -> None:
    if tuple(due) != tuple(read):
        raise ValueError(f"pieces of {key!r} are missing: {list(read)} of {list(due)} are there")
