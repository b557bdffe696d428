"""Casts of weights, counted: under autocast a weight in float32 is copied to bf16 to be used."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Casts(TorchDispatchMode):
    """The context in which `counts` counts, by parameter, how much of it is cast: 1 is all of it.

    Two parameters that are one (tied weights) count as the first of them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {
            p.untyped_storage().data_ptr(): (name, p.numel())
            for name, p in model.named_parameters()
        }
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and result.dtype != args[0].dtype:
            name, size = self.names.get(args[0].untyped_storage().data_ptr(), ("", 0))
            if name:
                self.counts[name] += args[0].numel() / size
        return result
