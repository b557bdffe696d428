"""Weights: a number for each state that trained weights have been in."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class Weights:
    """Tells whether the weights of a module are those that they were.

    Whatever writes to a parameter in place (an optimizer, a checkpoint that is read) makes a new
    number. Other weights that are only lent, and give way to the former ones, do not. Numbers begin
    with the time, so that none is another process's, or of before a run was resumed.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._numbers = module, count(time.time_ns())
        self._written: int | None = None
        self._number = 0

    @property
    def number(self) -> int:
        """Of the present state."""
        written = self._writes()
        if written != self._written:
            self._written, self._number = written, next(self._numbers)
        return self._number

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Inside there are other weights, with numbers of their own; the former are put back."""
        before, self._written = self.number, None
        try:
            yield
        finally:
            self._written, self._number = self._writes(), before

    def _writes(self) -> int:
        return sum(_writes(p) for p in self._module.parameters() if p.requires_grad)


@torch.no_grad()
def _writes(parameter: Tensor) -> int:
    """Of a parameter that is divided among processes, those to this process's part, too."""
    parts = [parameter.to_local()] if isinstance(parameter, DTensor) else []
    return sum(tensor._version for tensor in (parameter, *parts))
