"""Work: the turns to draw, and the batches in which they are drawn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

Batch = Sequence[tuple[int, Sequence[int]]]
"""Contexts, each with rows of its own."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The turns to draw: N rows, of which several may continue the same context.

    contexts: token ids; owners: for each row the index of its context; limits: most new tokens of
    each row. draws: [N, T] uniforms, T the largest limit; None for greedy. drawn: for each context
    the number of its tokens up to the last one that was drawn, 0 without any.
    """

    contexts: Sequence[Tensor]
    owners: Sequence[int]
    limits: Sequence[int]
    draws: Tensor | None
    drawn: Sequence[int] = ()

    @property
    def rows(self) -> list[list[int]]:
        """The rows of each context."""
        rows: list[list[int]] = [[] for _ in self.contexts]
        for row, owner in enumerate(self.owners):
            rows[owner].append(row)
        return rows

    def select(self, batch: Batch) -> "Work":
        """The part of it that is this batch."""
        rows = [row for _, own in batch for row in own]
        return Work(
            contexts=[self.contexts[context] for context, _ in batch],
            owners=[number for number, (_, own) in enumerate(batch) for _ in own],
            limits=[self.limits[row] for row in rows],
            draws=None if self.draws is None else self.draws[rows],
            drawn=[self.drawn[context] if self.drawn else 0 for context, _ in batch],
        )

    def batches(self, cache_tokens: int, *, mixed: bool) -> Iterator[Batch]:
        """Split the rows into batches.

        rows * (longest context + largest limit) of a batch is at most `cache_tokens`, unless it has
        one row. The rows of a context are divided only if they alone exceed that. mixed: whether
        the contexts of a batch may differ in length.
        """
        lengths, rows = [len(context) for context in self.contexts], self.rows
        batch: list[tuple[int, list[int]]] = []
        longest = 0
        for context in sorted(range(len(lengths)), key=lengths.__getitem__):
            limit = max(self.limits[row] for row in rows[context])
            size = max(1, cache_tokens // (lengths[context] + limit))
            for start in range(0, len(rows[context]), size):
                own = rows[context][start : start + size]
                count = sum(len(other) for _, other in batch) + len(own)
                alike = mixed or all(lengths[context] == lengths[other] for other, _ in batch)
                longest = max(longest, limit)
                if batch and not (alike and count * (lengths[context] + longest) <= cache_tokens):
                    yield batch
                    batch, longest = [], limit
                batch.append((context, own))
        yield batch
