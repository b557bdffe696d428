"""A stand-in for CUDA graphs on the simulated device: records operations, and runs them again.

As with CUDA, what is captured has no effect while it is captured; a replay repeats the operations
with the tensors and numbers of the capture, in the same memory; and capturing fails where the host
would wait. Beyond CUDA, a replay fails if memory that it reads or writes has been released.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only


@dataclass(frozen=True)
class Outside:
    """A tensor in memory that a graph uses and does not own."""

    storage: StorageWeakRef
    tensor: Tensor  # without data: of the same dtype, size and strides
    offset: int

    @staticmethod
    def of(tensor: Tensor) -> "Outside":
        size, strides = tensor.size(), tensor.stride()
        empty = torch.empty_strided(size, strides, dtype=tensor.dtype, device="meta")
        storage = StorageWeakRef(tensor.untyped_storage())
        return Outside(storage, empty, tensor.storage_offset())

    def get(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            raise RuntimeError("a graph uses memory that was released after its capture")
        size, strides = self.tensor.size(), self.tensor.stride()
        return torch.empty(0, dtype=self.tensor.dtype).set_(storage, self.offset, size, strides)


@dataclass(frozen=True)
class Step:
    """An operation, its arguments, and those of its results that are new tensors."""

    function: Any
    arguments: tuple[Any, Mapping[str, Any]]
    results: Sequence[Tensor | None]

    def run(self) -> None:
        args, kwargs = tree_map_only(Outside, Outside.get, self.arguments)
        results = tree_leaves(self.function(*args, **kwargs))
        for own, value in zip(self.results, results, strict=True):
            if own is not None:
                assert own.shape == value.shape, self.function
                own.copy_(value)


class Graph:
    """Stands in for torch.cuda.CUDAGraph. launched: called at each replay."""

    def __init__(self, launched: Callable[[], None]) -> None:
        self.steps: list[Step] = []
        self._launched = launched
        self._own: dict[int, Tensor] = {}  # a tensor in each piece of memory, by its address
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def record(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Run an operation of the capture."""
        arguments = tree_map_only(Tensor, self._kept, (args, kwargs))
        inputs = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        for tensor in written(function, args, kwargs):
            self._save(tensor)
        results = function(*args, **kwargs)
        known = {_address(tensor) for tensor in inputs}
        new = [
            value if isinstance(value, Tensor) and _address(value) not in known else None
            for value in tree_leaves(results)
        ]
        for value in new:
            if value is not None:
                self._own[_address(value)] = value
        if any(value is not None for value in new) or written(function, args, kwargs):
            self.steps.append(Step(function, arguments, new))
        return results

    def _kept(self, tensor: Tensor) -> Tensor | Outside:
        return tensor if _address(tensor) in self._own else Outside.of(tensor)

    def _save(self, tensor: Tensor) -> None:
        key = _address(tensor)
        if key not in self._own and key not in self._before:
            storage = tensor.untyped_storage()
            self._before[key] = storage, storage.clone()

    def undo(self) -> None:
        """Restore what the operations of the capture have written."""
        for storage, content in self._before.values():
            storage.copy_(content)
        self._before.clear()

    def replay(self) -> None:
        self._launched()
        with _disable_current_modes():
            for step in self.steps:
                step.run()


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def written(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that an operation writes into."""
    changed: list[Tensor] = []
    for position, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            changed += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return changed


@contextmanager
def capture(device: Any, graph: Graph, **_: Any) -> Iterator[None]:
    """Stands in for torch.cuda.graph. device: whose `recording` is this graph meanwhile."""
    device.count(captures=1)
    device.recording = graph
    try:
        yield
    finally:
        device.recording = None
        graph.undo()
