"""Counts casts of weights, by any operation that copies one into another dtype."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Casts(TorchDispatchMode):
    """A context. `counts` maps each parameter's name to the share that was cast: 1 is all of it.

    Tied weights count under the first of their names.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names: dict[int, tuple[str, int]] = {}
        for name, p in model.named_parameters():
            self.names.setdefault(p.untyped_storage().data_ptr(), (name, p.numel()))
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for source, copy in _copied(func, args, result):
            name, size = self.names.get(source.untyped_storage().data_ptr(), ("", 0))
            if name and source.dtype != copy.dtype:
                self.counts[name] += source.numel() / size
        return result


def _copied(func: Any, args: Sequence[Any], result: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """(source, copy) of each tensor that an operation copies."""
    if func is aten._to_copy.default:
        yield args[0], result
    elif func is aten.copy_.default:
        yield args[1], args[0]
    elif func is aten._foreach_copy_.default:
        yield from zip(args[1], args[0], strict=True)
