"""Lineage: which rows of a batch of episodes follow which, and so whose reward is theirs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.rewards import Scores

NONE = -1
"""No such row."""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """How the rows of all players hang together: N rows, those of the first player first.

    players: [N] int64, the number of the row's player; draws: [N] int64, that of the prompt's draw;
    judged: [N] int64, the row's place among the judged rollouts; parents: [N] int64, the row that
    it follows; both are `NONE` where there is no such row; refused: [N] bool, rows that another
    player could not take as its context, and that nothing follows.
    """

    players: Tensor
    draws: Tensor
    judged: Tensor
    parents: Tensor
    refused: Tensor

    def of(self, player: int) -> Tensor:
        """[N] bool: the rows of this player."""
        return self.players == player

    def select(self, keep: Tensor, judged: Tensor) -> "Lineage":
        """Some rows, with all that they hang together with; keep: [N] bool; judged: [J] int64, the
        judged rollouts that are kept, in their new order."""
        size = int(self.judged.max()) + 1 if len(self.judged) else 0
        return Lineage(
            players=self.players[keep],
            draws=self.draws[keep],
            judged=_at(_inverse(judged, size), self.judged[keep]),
            parents=_at(_inverse(keep.nonzero().flatten(), len(keep)), self.parents[keep]),
            refused=self.refused[keep],
        )

    @staticmethod
    def concat(parts: Sequence["Lineage"], judged: Sequence[int]) -> "Lineage":
        """All parts as one; judged: the number of judged rollouts of each."""
        joined = Lineage(
            players=torch.cat([part.players for part in parts]),
            draws=torch.cat([part.draws for part in parts]),
            judged=torch.cat([*_shifted([part.judged for part in parts], judged)]),
            parents=torch.cat(
                [*_shifted([part.parents for part in parts], [len(p.players) for p in parts])]
            ),
            refused=torch.cat([part.refused for part in parts]),
        )
        order = joined.players.argsort(stable=True)
        return Lineage(
            players=joined.players[order],
            draws=joined.draws[order],
            judged=joined.judged[order],
            parents=_at(_inverse(order, len(order)), joined.parents[order]),
            refused=joined.refused[order],
        )

    @property
    def depths(self) -> Tensor:
        """[N] int64: how many rows each follows, one after the other."""
        depths, ancestors = torch.zeros_like(self.parents), self.parents
        while bool((ancestors >= 0).any()):
            depths += ancestors >= 0
            ancestors = _at(self.parents, ancestors)
        return depths

    def credit(self, scores: Scores, failed: Tensor, refused: Tensor) -> Scores:
        """The scores of all rows: their own if they are judged, else the mean of those that follow.

        Failed ones are left out of the mean, which is NaN if none is scored. A row that is not
        judged failed if itself did, or all that follow it.

        scores: of the judged rollouts; failed: [N] bool, rows whose completions failed; refused:
        [N] float64, the value of each reward for rows that were refused.
        """
        own, depths = self.judged >= 0, self.depths
        values = scores.values.new_full((len(failed), scores.values.shape[1]), torch.nan)
        values[self.refused] = refused[self.refused].unsqueeze(1)
        values[own], failed = scores.values[self.judged[own]], failed.clone()
        failed[own] |= scores.failed[self.judged[own]]
        for depth in range(int(depths.max()) if len(depths) else 0, 0, -1):
            rows = (depths == depth).nonzero().flatten()
            parents = self.parents[rows]
            known = values[rows].masked_fill(failed[rows].unsqueeze(1), torch.nan)
            sums = torch.zeros_like(values).index_add(0, parents, known.nan_to_num())
            counts = torch.zeros_like(values).index_add(0, parents, (~known.isnan()).to(values))
            means = torch.where(counts > 0, sums / counts.clamp(min=1), torch.nan)
            followed, lost = torch.zeros(2, len(failed), dtype=torch.bool)
            followed[parents], lost[parents] = True, True
            lost[parents[~failed[rows]]] = False
            values[followed & ~own] = means[followed & ~own]
            failed |= lost & ~own
        return Scores(
            names=scores.names,
            weights=scores.weights,
            scales=scores.scales,
            values=values,
            failed=failed,
        )


def _inverse(order: Tensor, size: int) -> Tensor:
    """[size] int64: the place of each number in `order`; `NONE` where it has none."""
    places = torch.full((size,), NONE)
    places[order] = torch.arange(len(order))
    return places


def _at(places: Tensor, numbers: Tensor) -> Tensor:
    """The places of these numbers; of `NONE`, `NONE`."""
    if not len(places):
        return torch.full_like(numbers, NONE)
    return torch.where(numbers >= 0, places[numbers.clamp(min=0)], NONE)


def _shifted(numbers: Sequence[Tensor], sizes: Sequence[int]) -> Iterator[Tensor]:
    """Numbers of each part as numbers of all parts together."""
    start = 0
    for own, size in zip(numbers, sizes, strict=True):
        yield torch.where(own >= 0, own + start, NONE)
        start += size
