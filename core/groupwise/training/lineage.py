"""Lineage: which calls of a batch of episodes follow which, and so whose reward is theirs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.rewards import Scores
from groupwise.training.calls import Call, Rows

NONE = -1
"""No such row."""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """How the calls of all players hang together: N calls, those of the first player first.

    players: [N] int64, the number of the call's player; rows: [N] int64, the number of the rollout
    that it belongs to, among those of all players, the first player's first; several calls belong
    to one rollout if each goes on in the context of the one before; draws: [N] int64, the number of
    the prompt's draw; judged: [N] int64, the place among the judged rollouts; parents: [N] int64,
    the call that it follows; both are `NONE` where there is none; refused: [N] bool, calls whose
    reply another player could not take as its context, and that nothing follows.
    """

    players: Tensor
    rows: Tensor
    draws: Tensor
    judged: Tensor
    parents: Tensor
    refused: Tensor

    @staticmethod
    def of_calls(rows: Rows, judged: Sequence[Call]) -> "Lineage":
        """Of the calls of each rollout, by player, and of the judged calls in their order."""
        members = [(number, own) for number, each in enumerate(rows.values()) for own in each]
        calls = [call for _, own in members for call in own]
        places = {id(call): place for place, call in enumerate(judged)}
        numbers = {id(call): number for number, call in enumerate(calls)}

        def of_each(values: Iterable[int]) -> Tensor:
            return torch.tensor([*values], dtype=torch.int64)

        return Lineage(
            players=of_each(number for number, own in members for _ in own),
            rows=of_each(row for row, (_, own) in enumerate(members) for _ in own),
            draws=of_each(call.episode.draw.number for call in calls),
            judged=of_each(places.get(id(call), NONE) for call in calls),
            parents=of_each(numbers.get(id(call.parent), NONE) for call in calls),
            refused=of_each(
                call.refused_by is not None and not call.is_followed and id(call) not in places
                for call in calls
            ).bool(),
        )

    @property
    def carriers(self) -> Tensor:
        """[M] int64: for each rollout the call that has its reward: the judged one, else its first,
        which all others follow."""
        numbers = torch.arange(len(self.rows))
        count = int(self.rows.max()) + 1 if len(numbers) else 0
        first = torch.full((count,), len(numbers)).scatter_reduce(0, self.rows, numbers, "amin")
        own = (self.judged >= 0).nonzero().flatten()
        first[self.rows[own]] = own
        return first

    def of(self, player: int) -> Tensor:
        """[n] int64: the carriers of this player's rollouts."""
        carriers = self.carriers
        return carriers[self.players[carriers] == player]

    def select(self, keep: Tensor, judged: Tensor) -> "Lineage":
        """Some calls, with all that they hang together with; keep: [N] bool; judged: [J] int64, the
        judged rollouts that are kept, in their new order."""
        carriers = self.carriers
        rows = _inverse(keep[carriers].nonzero().flatten(), len(carriers))
        size = int(self.judged.max()) + 1 if len(self.judged) else 0
        return Lineage(
            players=self.players[keep],
            rows=_at(rows, self.rows[keep]),
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
            rows=torch.cat(
                [*_shifted([part.rows for part in parts], [len(p.carriers) for p in parts])]
            ),
            draws=torch.cat([part.draws for part in parts]),
            judged=torch.cat([*_shifted([part.judged for part in parts], judged)]),
            parents=torch.cat(
                [*_shifted([part.parents for part in parts], [len(p.players) for p in parts])]
            ),
            refused=torch.cat([part.refused for part in parts]),
        )
        order = joined.players.argsort(stable=True)
        carriers = joined.carriers
        rows = joined.players[carriers].argsort(stable=True)
        return Lineage(
            players=joined.players[order],
            rows=_at(_inverse(rows, len(rows)), joined.rows[order]),
            draws=joined.draws[order],
            judged=joined.judged[order],
            parents=_at(_inverse(order, len(order)), joined.parents[order]),
            refused=joined.refused[order],
        )

    @property
    def depths(self) -> Tensor:
        """[N] int64: how many calls each follows, one after the other."""
        depths, ancestors = torch.zeros_like(self.parents), self.parents
        while bool((ancestors >= 0).any()):
            depths += ancestors >= 0
            ancestors = _at(self.parents, ancestors)
        return depths

    def credit(self, scores: Scores, failed: Tensor, refused: Tensor) -> Scores:
        """The scores of all calls: their own if judged, else the mean of those that follow.

        Failed ones are left out of the mean, which is NaN if none is scored. A call that is not
        judged failed if itself did, or all that follow it.

        scores: of the judged rollouts; failed: [M] bool, rollouts that failed; refused: [N]
        float64, the value of each reward for calls whose reply was refused.
        """
        own, depths = self.judged >= 0, self.depths
        failed = failed[self.rows]
        values = scores.values.new_full((len(failed), scores.values.shape[1]), torch.nan)
        values[self.refused] = refused[self.refused].unsqueeze(1)
        values[own] = scores.values[self.judged[own]]
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
