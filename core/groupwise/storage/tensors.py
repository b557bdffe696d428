"""Tensors on the disk: safetensors files, in which a sharded run's processes hold a part each.

A tensor that is whole lies in `weights.safetensors`, say. Of one that is divided among processes
each writes what it holds to a file of its own, `weights.1-of-4.safetensors`, whose header says
where the piece belongs. What reads them needs not know how many there were: a run goes on with
another number of processes, each of which reads only its own part.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from groupwise.storage.state import on_cpu

FILE = re.compile(r"(?P<name>[\w-]+?)(\.\d+-of-\d+)?\.safetensors")


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
        elif piece is not None and (local.shape[piece.dim] or rank == 0):
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
        """Raises ValueError where the pieces of a tensor are not all there, or are of others."""
        self._parts: dict[str, list[tuple[Any, Piece]]] = {}
        for path in sorted(paths):
            file = safe_open(path, framework="pt")
            places = file.metadata() or {}
            for key in file.keys():  # noqa: SIM118 - no mapping
                piece = Piece(tuple(file.get_slice(key).get_shape()))
                if key in places:
                    piece = _stated(places[key])
                self._parts.setdefault(key, []).append((file, piece))
        for key, parts in self._parts.items():
            parts.sort(key=lambda part: part[1].start)
            _check_whole(key, parts)

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
        """Its places `wanted` along `dim`."""
        parts = self._parts[key]
        file, first = parts[0]
        if len(parts) == 1:
            if wanted == slice(None):
                whole: Tensor = file.get_tensor(key)
                return whole
            parts = [(file, replace(first, dim=dim))]  # all of it, so its pieces along any
        start, stop, _ = wanted.indices(first.shape[dim])
        if parts[0][1].dim != dim:
            return self[key].narrow(dim, start, stop - start)
        read = [_read(file, key, piece, start, stop) for file, piece in parts]
        return torch.cat([part for part in read if part is not None], dim=dim)


def files_of(names: Iterable[str]) -> dict[str, list[str]]:
    """The files of each name ("weights"), of file names among which there may be others."""
    files: dict[str, list[str]] = {}
    for file in names:
        match = FILE.fullmatch(file)
        if match:
            files.setdefault(match["name"], []).append(file)
    return files


def _stated(text: str) -> Piece:
    """What a file's header says of a piece. Raises ValueError where that is no place."""
    try:
        shape, dim, start = json.loads(text)
        piece = Piece(tuple(map(int, shape)), int(dim), int(start))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text!r} is no place of a piece") from error
    if not 0 <= piece.dim < len(piece.shape):
        raise ValueError(f"{text!r} is no place of a piece")
    return piece


def _check_whole(key: str, parts: Sequence[tuple[Any, Piece]]) -> None:
    """Raise ValueError where pieces, in order, are not one after the other the whole tensor."""
    whole = parts[0][1]
    if not whole.shape and len(parts) == 1:
        return
    end = 0
    for file, piece in parts:
        held = file.get_slice(key).get_shape()
        due = Piece(whole.shape, whole.dim, end)
        rest = [held[d] == size for d, size in enumerate(whole.shape) if d != whole.dim]
        if piece != due or len(held) != len(whole.shape) or not all(rest):
            break
        end += held[whole.dim]
    else:
        if end == whole.shape[whole.dim]:
            return
    raise ValueError(
        f"pieces of {key!r} are missing: after {end} of {list(whole.shape)} along dimension "
        f"{whole.dim} the next is not there"
    )


def _read(file: Any, key: str, piece: Piece, start: int, stop: int) -> Tensor | None:
    """What a file has of the places start to stop; None where that is nothing."""
    stored = file.get_slice(key)
    size, before = stored.get_shape()[piece.dim], (slice(None),) * piece.dim
    low, high = max(start - piece.start, 0), min(stop - piece.start, size)
    nothing = low >= high and start != stop
    return None if nothing else stored[(*before, slice(low, max(low, high)))]
