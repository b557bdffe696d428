"""Conditions: what a model reads of encoded rows, and what is known of them without the device."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

Row = Mapping[str, Any]
"""A row of the dataset."""

MASK = "mask"
"""The name of the condition that is True at real tokens."""

UNCONDITIONAL = "unconditional pass"
"""The key, with the value True, of a row of guidance's unconditional pass; other rows lack it."""


class Conditions(Mapping[str, Tensor]):
    """The model's inputs that encode n rows (text embeddings and the like), by name, each [n, ...].

    lengths: of each row the number of its tokens up to the last real one, of conditions in
        `Adapter.by_token`; () if there are none. Plain numbers, so that a pass that needs them does
        not make the host wait for the device.
    """

    def __init__(self, tensors: Mapping[str, Tensor], lengths: Sequence[int] = ()) -> None:
        self._tensors, self.lengths = dict(tensors), tuple(lengths)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def select(self, rows: slice | Tensor, numbers: Sequence[int]) -> "Conditions":
        """The conditions of some rows.

        rows: a slice, or indices on the device; numbers: the same rows as numbers on the host.
        Contiguous also for rows that share one condition, since a kernel for another layout would
        round differently in half precision.
        """
        return Conditions(
            {name: value[rows].contiguous() for name, value in self.items()},
            [self.lengths[number] for number in numbers] if self.lengths else (),
        )
