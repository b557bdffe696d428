"""Work: the turns to draw, and the batches in which they are drawn."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

Piece = tuple[int, Sequence[int]]
"""A context, and rows of its own."""
Batch = Sequence[Piece]


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

    def pieces(self, cache_tokens: int) -> deque[Piece]:
        """All contexts with their rows, by length. The rows of a context are divided only if they
        alone exceed this size of the cache."""
        pieces: deque[Piece] = deque()
        rows = self.rows
        for context in sorted(range(len(rows)), key=lambda number: len(self.contexts[number])):
            limit = self.limit(rows[context])
            size = max(1, cache_tokens // (len(self.contexts[context]) + limit))
            for start in range(0, len(rows[context]), size):
                pieces.append((context, rows[context][start : start + size]))
        return pieces

    def limit(self, rows: Sequence[int]) -> int:
        """The largest limit of these rows."""
        return max(self.limits[row] for row in rows)

    def take(
        self,
        waiting: deque[Piece],
        cache_tokens: int,
        *,
        mixed: bool,
        beside: tuple[int, int, int] = (0, 0, 0),
    ) -> Batch:
        """Take a batch from the pieces that wait.

        rows * (longest context + largest limit) is at most `cache_tokens`, unless it has one piece.
        mixed: whether its contexts may differ in length. beside: a number of rows that are decoded
        already, the most tokens that one of them has in the cache, and how many may follow.
        """
        batch: list[Piece] = []
        count, longest, limit = beside
        while waiting:
            context, rows = waiting[0]
            length = len(self.contexts[context])
            longest, limit = max(longest, length), max(limit, self.limit(rows))
            alike = mixed or all(length == len(self.contexts[other]) for other, _ in batch)
            fits = alike and (count + len(rows)) * (longest + limit) <= cache_tokens
            if count and not fits:
                break
            batch.append(waiting.popleft())
            count += len(rows)
        return batch
