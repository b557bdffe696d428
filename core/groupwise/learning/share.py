"""Share: the rollouts of a learner whose passes this process makes, each as a row of columns."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from groupwise.record import Rollout
from groupwise.record.gather import moved, on_accelerator, scores_of
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


@dataclass(frozen=True, kw_only=True)
class Share:
    """B rollouts, in one order; all but the `rollouts` is in CPU memory."""

    rollouts: Rollouts
    scores: Scores
    draws: Tensor
    """[B] int64: the number of each prompt's draw."""
    homes: Tensor
    """[B, 2] int64: the process that sampled each, and its place among those of that process."""
    replayed: Tensor
    """[B] bool: rollouts of earlier steps."""
    goes_on: Tensor
    """[B] bool: those that begin within a context, so that another rollout's words precede them."""

    @staticmethod
    def of(
        members: Sequence[Rollout], rollouts: Rollouts, like: Scores, *, process: int
    ) -> "Share":
        """Those that were sampled here; rollouts: gathered of the members; like: scores of the
        step's rewards; process: the number of this one."""
        first = [member.first for member in members]
        return Share(
            rollouts=rollouts,
            scores=scores_of(members, like),
            draws=torch.tensor([member.draw for member in members], dtype=torch.int64),
            homes=torch.tensor(
                [(process, place) for place in range(len(members))], dtype=torch.int64
            ).view(-1, 2),
            replayed=torch.tensor([member.is_replayed for member in members], dtype=torch.bool),
            goes_on=torch.tensor(
                [call.goes_on_from is not None for call in first], dtype=torch.bool
            ),
        )

    def __len__(self) -> int:
        return len(self.draws)

    def select(self, rows: Tensor) -> "Share":
        """These rows, in their order."""
        return Share(
            rollouts=self.rollouts.select(rows),
            scores=self.scores.select(rows),
            **{name: getattr(self, name)[rows] for name in _COLUMNS},
        )

    @staticmethod
    def concat(parts: Sequence["Share"]) -> "Share":
        """All rows of the parts, in order."""
        return Share(
            rollouts=Rollouts.concat([part.rollouts for part in parts]),
            scores=Scores.concat([part.scores for part in parts]),
            **{name: torch.cat([getattr(part, name) for part in parts]) for name in _COLUMNS},
        )

    def packed(self) -> tuple["Share", frozenset[str]]:
        """A copy to send, in CPU memory and without completions and facts, and the names of its
        columns that lie on the device."""
        sent = moved(self.rollouts, torch.device("cpu"), copy=True)
        return replace(self, rollouts=sent), on_accelerator(self.rollouts)

    def unpacked(self, there: Collection[str], device: torch.device) -> "Share":
        """The share of which this was `packed`, on this process's device."""
        return replace(self, rollouts=moved(self.rollouts, device, only=there))


_COLUMNS = [f.name for f in fields(Share) if f.name not in ("rollouts", "scores")]
