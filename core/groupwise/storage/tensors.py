"""Tensors on the disk: safetensors files, one per process for a sharded run.

Whole tensors are in `weights.safetensors`. Of sharded tensors, each process writes its shards to a
file of its own, `weights.1-of-4.safetensors`, whose header has the position of each shard; of
several processes with the same shard, the first. They can be read by any number of processes, each
of which reads only its own part.
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

from groupwise.storage.disk import open_to_others

FILE = re.compile(r"(?P<name>[\w-]+?)(\.\d+-of-\d+)?\.safetensors")


@dataclass(frozen=True)
class Piece:
    """A part of a tensor of this shape: the indices from `start` on along `dim`."""

    shape: tuple[int, ...]
    dim: int = 0
    start: int = 0


@dataclass(frozen=True)
class Part:
    """What a process writes of the tensors of a file: copies in CPU memory, and, where there are
    several processes, the places of shards and the end of the file's name."""

    tensors: Mapping[str, Tensor]
    places: Mapping[str, str]
    number: str

    def write(self, folder: Path, name: str) -> Path:
        """Write them; returns the file."""
        path = folder / f"{name}{self.number}.safetensors"
        save_file(dict(self.tensors), path, metadata=dict(self.places) or None)
        open_to_others(folder, path)
        return path


def part_of(tensors: Mapping[str, Tensor], process: tuple[int, int]) -> Part | None:
    """This process's part of the tensors; None if there is nothing to write.

    process: rank and number of the processes that write. Tensors that are not sharded are written
    by the first.
    """
    rank, world = process
    parts, places = {}, {}
    for key, tensor in tensors.items():
        piece = piece_of(tensor)
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if world == 1 or (piece is None and rank == 0):
            parts[key] = local
        elif piece is not None and _is_first(tensor) and (local.shape[piece.dim] or rank == 0):
            parts[key] = local
            places[key] = json.dumps([piece.shape, piece.dim, piece.start])
    if rank and not parts:
        return None
    # Copies, since safetensors refuses tensors that share memory.
    copies = {
        key: part.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for key, part in parts.items()
    }
    return Part(copies, places, f".{rank}-of-{world}" if world > 1 else "")


def piece_of(tensor: Tensor) -> Piece | None:
    """The part of a tensor that this process holds; None if it holds all.

    A dimension is split as by `torch.chunk`: into equal parts, of which the last may be smaller or
    missing.
    """
    if not isinstance(tensor, DTensor):
        return None
    mesh = tensor.device_mesh
    for number, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            dim = placement.dim
            size = -(-tensor.shape[dim] // mesh.size(number))
            start = min(mesh.get_local_rank(number) * size, tensor.shape[dim])
            return Piece(tuple(tensor.shape), dim, start)
    return None


def _is_first(tensor: Tensor) -> bool:
    """Whether this process is the first of those that hold the same part of the tensor."""
    return not isinstance(tensor, DTensor) or not any(
        tensor.device_mesh.get_local_rank(number)
        for number, placement in enumerate(tensor.placements)
        if placement.is_replicate()
    )


class Stored(Mapping[str, Tensor]):
    """The tensors in files that `Part.write` wrote, loaded lazily."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Raises ValueError if pieces of a tensor are missing or do not fit together."""
        self.paths = sorted(paths)
        self._parts: dict[str, list[tuple[Any, Piece]]] = {}
        for path in self.paths:
            file = safe_open(path, framework="pt")
            places = file.metadata() or {}
            for key in file.keys():  # noqa: SIM118 - it is no mapping
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
        """The stored tensor, sharded like this one; each process reads only its part."""
        piece = piece_of(tensor)
        if piece is None or not isinstance(tensor, DTensor):
            return self[key]
        own = tensor.to_local()
        stop = piece.start + own.shape[piece.dim]
        local = self._region(key, slice(piece.start, stop), piece.dim)
        return DTensor.from_local(
            local.to(own.device, own.dtype),
            tensor.device_mesh,
            tensor.placements,
            shape=tensor.shape,
            stride=tensor.stride(),
            run_check=False,
        )

    def _region(self, key: str, region: slice, dim: int) -> Tensor:
        """The slice `region` of a tensor along `dim`."""
        parts = self._parts[key]
        file, first = parts[0]
        if len(parts) == 1:
            if region == slice(None):
                whole: Tensor = file.get_tensor(key)
                return whole
            parts = [(file, replace(first, dim=dim))]  # a whole tensor can be cut along any dim
        start, stop, _ = region.indices(first.shape[dim])
        if parts[0][1].dim != dim:
            return self[key].narrow(dim, start, stop - start)
        read = [_read(file, key, piece, start, stop) for file, piece in parts]
        return torch.cat([part for part in read if part is not None], dim=dim)


def files_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Files by the name of their content ("weights"); other files are ignored."""
    files: dict[str, list[str]] = {}
    for file in names:
        match = FILE.fullmatch(file)
        if match:
            files.setdefault(match["name"], []).append(file)
    return files


def _stated(text: str) -> Piece:
    """Parse a piece from a file's header. Raises ValueError if it is invalid."""
    try:
        shape, dim, start = json.loads(text)
        piece = Piece(tuple(map(int, shape)), int(dim), int(start))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text!r} is no position of a piece") from error
    if not 0 <= piece.dim < len(piece.shape):
        raise ValueError(f"{text!r} is no position of a piece")
    return piece


def _check_whole(key: str, parts: Sequence[tuple[Any, Piece]]) -> None:
    """Raise ValueError unless the pieces, in order, make up the whole tensor."""
    whole = parts[0][1]
    if not whole.shape and len(parts) == 1:
        return
    end = 0
    for file, piece in parts:
        shape = file.get_slice(key).get_shape()
        expected = Piece(whole.shape, whole.dim, end)
        rest = [shape[d] == size for d, size in enumerate(whole.shape) if d != whole.dim]
        if piece != expected or len(shape) != len(whole.shape) or not all(rest):
            break
        end += shape[whole.dim]
    else:
        if end == whole.shape[whole.dim]:
            return
    raise ValueError(
        f"pieces of {key!r} are missing: of shape {list(whole.shape)}, along dimension "
        f"{whole.dim}, only the first {end} are there"
    )


def _read(file: Any, key: str, piece: Piece, start: int, stop: int) -> Tensor | None:
    """The part of a file's piece from index start to stop; None if it has none of it."""
    stored = file.get_slice(key)
    size, before = stored.get_shape()[piece.dim], (slice(None),) * piece.dim
    low, high = max(start - piece.start, 0), min(stop - piece.start, size)
    nothing = low >= high and start != stop
    return None if nothing else stored[(*before, slice(low, max(low, high)))]
