"""Counting the bytes that code takes, by running it on tensors without data (device meta)."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak(function: Callable[[], Any]) -> int:
    """The most bytes that tensors which the function creates take at one time, without gradients.

    Workspaces of kernels are not counted; nor are attention's scores, which fused kernels never
    hold.
    """
    with Alive("meta") as alive, without_data():
        result = function()
        del result
    return alive.most


@contextmanager
def without_data() -> Iterator[None]:
    """The context in which models run on tensors without data, and without gradients."""
    with torch.no_grad(), _WithoutData():
        yield


def kept(function: Callable[[], Any], models: Iterable[nn.Module]) -> int:
    """The bytes that a pass of training keeps for its backward pass.

    models: of diffusers, whose recomputed blocks keep their outputs, which the next one reads; of
        the largest block all is kept in the backward pass.
    """
    with torch.enable_grad(), Alive("meta") as alive, _WithoutData():
        blocks = _Recomputed(alive)
        modules: list[Any] = [each for model in models for each in model.modules()]
        for module in modules:
            if hasattr(module, "_gradient_checkpointing_func"):
                module._gradient_checkpointing_func = blocks
        result = function()
        size = alive.now - blocks.dropped + blocks.largest
        del result
    return size


class _Recomputed:
    """Runs blocks that are recomputed; counts the bytes they drop, and those of the largest."""

    def __init__(self, alive: "Alive") -> None:
        self.alive, self.dropped, self.largest = alive, 0, 0

    def __call__(self, block: Any, *inputs: Any) -> Any:
        before = self.alive.now
        output = block(*inputs)
        size = self.alive.now - before
        tensors = [value for value in tree_leaves(output) if isinstance(value, Tensor)]
        self.dropped += size - sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        self.largest = max(self.largest, size)
        return output


class Alive(TorchDispatchMode):
    """Counts the bytes of the storages that are made and exist; most: the most so far."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.now, self.most = device, 0, 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = {storage._cdata for storage in self._storages((args, kwargs))}
        result = function(*args, **(kwargs or {}))
        for storage in self._storages(result):
            if storage._cdata not in self._known | before:
                self._add(storage)
        return result

    def _storages(self, values: Any) -> Iterator[torch.UntypedStorage]:
        for value in tree_leaves(values):
            if isinstance(value, Tensor) and value.device.type == self.device:
                yield value.untyped_storage()

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, partial(self._remove, key, size))

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class _WithoutData(TorchFunctionMode):
    """The context in which models run on tensors without data.

    Attention gives its output's shape, as fused kernels do: torch would hold its scores. And models
    that ask whether a mask is full are told that it is: rows chosen by it are all, and those chosen
    by its opposite none.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is scaled_dot_product_attention:
            named = dict(zip(("query", "key", "value"), args, strict=False)) | dict(kwargs or {})
            return _Attention.apply(named["query"], named["key"], named["value"])
        if function is Tensor.__bool__ and args[0].is_meta:
            return True
        if function is Tensor.__invert__ and args[0].is_meta:
            opposite: Any = function(*args)
            opposite.chooses_none = True
            return opposite
        if function is Tensor.__getitem__ and _is_mask(args[1]):
            return args[0][:0] if hasattr(args[1], "chooses_none") else args[0]
        return function(*args, **(kwargs or {}))


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.is_meta and index.dtype == torch.bool


class _Attention(torch.autograd.Function):
    """Attention's shapes, and what fused kernels keep of it: its inputs and its output."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, output)
        return output

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(saved) for saved in ctx.saved_tensors[:3])
