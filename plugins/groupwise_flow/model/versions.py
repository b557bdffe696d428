"""Versions: a version number that changes whenever trained weights change."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class Versions:
    """Numbers the versions of the weights of modules, to notice when they have changed.

    Every in-place write to a parameter (optimizer step, loading a checkpoint) makes a new number.
    Swapping weights within `temporary`, and back, does not. Numbers start at the current time, so
    they differ between processes, and before and after resuming a run.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self._modules, self._numbers = modules, count(time.time_ns())
        self._written: int | None = None
        self._number = 0

    @property
    def number(self) -> int:
        """Number of the present version."""
        written = self._writes()
        if written != self._written:
            self._written, self._number = written, next(self._numbers)
        return self._number

    @contextmanager
    def temporary(self) -> Iterator[None]:
        """The context for other weights, with numbers of their own; the former number returns."""
        before, self._written = self.number, None
        try:
            yield
        finally:
            self._written, self._number = self._writes(), before

    def _writes(self) -> int:
        parameters = (p for module in self._modules for p in module.parameters())
        return sum(_writes(p) for p in parameters if p.requires_grad)


@torch.no_grad()
def _writes(parameter: Tensor) -> int:
    """Number of in-place writes to a parameter; of a sharded one, also to this process's shard."""
    parts = [parameter.to_local()] if isinstance(parameter, DTensor) else []
    return sum(tensor._version for tensor in (parameter, *parts))
