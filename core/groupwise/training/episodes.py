"""Episodes: whole groups of played episodes: what rewards judge, and the rows of each player."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from groupwise.errors import UserError
from groupwise.prompt_source import Row
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.training.lineage import Lineage
from groupwise.training.training_batch import TrainingBatch


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A reply that another player could not take as its context, or that failed before; or an
    episode that failed before any reply.

    by: the label of that player; row: of the data set; draw: its number; index: of the episode
    among those of the draw; written: the reply's text by its player's label; value: the value of
    each reward for it; failure: why the reply failed, None if it was refused.
    """

    row: Row
    draw: int
    index: int
    by: str = ""
    written: Mapping[str, str] = field(default_factory=dict)
    value: float = 0.0
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """A batch of whole groups of episodes.

    Facts are only in `judged`: nothing else may hold their tensors once rewards have seen them. The
    rollouts of each of several players keep those that are logged, as plain numbers.

    judged: the rollouts that rewards see, as completions of the data set's rows; indices: the
    number of each one's episode among those of its prompt; players: the rollouts of each, by label
    in the order of the configuration; None for a single player that is called once in an episode:
    its rollouts are the judged ones; lineage: of all calls; compared: whether the players' rows are
    compared with each other; values: by label, the value of each reward for refused rows; lost:
    episodes that failed before any reply, each as the number of its draw; failures: why completions
    failed, see `failures.of_policies`.
    """

    judged: Rollouts
    indices: Sequence[int]
    players: Mapping[str, Rollouts | None]
    lineage: Lineage
    compared: bool = False
    values: Mapping[str, float] = field(default_factory=dict)
    refusals: Sequence[Refusal] = ()
    lost: Sequence[int] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    def rollouts(self, label: str) -> Rollouts:
        """The rollouts of a player."""
        own = self.players[label]
        return self.judged if own is None else own

    def check_for_spares(self) -> None:
        """Raise UserError if a player has no rollouts on this process, so none for dummy passes."""
        for label in self.players:
            if not len(self.rollouts(label)):
                raise UserError(self._lacks_rows(label))

    def _lacks_rows(self, label: str) -> str:
        failed, refused = int(self._failed.sum()), int(self.lineage.refused.sum())
        others = " and ".join(repr(n) for n in self.players if len(self.rollouts(n)))
        reasons = "".join(f"\n  {why}" for why in self.failures.values())
        return (
            f"on one of the processes {label!r} has no prompt in this step, so there is nothing to "
            f"learn from: of {len(self._failed)} completions of {others} {failed} failed, and "
            f"{label!r} cannot take {refused} as its prompt. "
            f"Use fewer processes or more train.groups_per_step"
            f"{', and policies that write what the next one can take' if refused else ''}"
            f"{'; the first failures:' if reasons else ''}{reasons}"
        )

    @property
    def _failed(self) -> Tensor:
        """[M] bool: failed rollouts of all players, in the order of `Lineage.rows`."""
        return torch.cat([self.rollouts(label).failed for label in self.players])

    def select(self, rows: Tensor) -> "Episodes":
        """The part of whole groups; rows: [B] bool or indices of judged rollouts."""
        index = torch.arange(len(self.judged))[rows]
        draws = self.judged.groups.cpu()[index]
        keep = torch.isin(self.lineage.draws, draws)
        return Episodes(
            judged=self.judged.select(index),
            indices=[self.indices[number] for number in index.tolist()],
            players={
                label: None if own is None else own.select(keep[self.lineage.of(number)])
                for number, (label, own) in enumerate(self.players.items())
            },
            lineage=self.lineage.select(keep, index),
            compared=self.compared,
            values=self.values,
            lost=[draw for draw in self.lost if draw in {*draws.tolist()}],
            failures=self.failures if len(index) else {},
        )

    @staticmethod
    def concat(parts: Sequence["Episodes"]) -> "Episodes":
        """All parts as one, in order."""
        first, *others = parts
        if not others:
            return first
        failures = [item for part in reversed(parts) for item in part.failures.items()]
        return Episodes(
            judged=Rollouts.concat([part.judged for part in parts]),
            indices=[index for part in parts for index in part.indices],
            players={
                label: None
                if own is None
                else Rollouts.concat([part.rollouts(label) for part in parts])
                for label, own in first.players.items()
            },
            lineage=Lineage.concat(
                [part.lineage for part in parts], [len(part.judged) for part in parts]
            ),
            compared=first.compared,
            values=first.values,
            lost=[draw for part in parts for draw in part.lost],
            failures=dict(failures),
        )

    def training_batches(self, scores: Scores) -> Mapping[str, TrainingBatch]:
        """The training batch of each player, by label; scores: of the judged rollouts.

        A row that is not judged has the mean scores of those that follow it. Raises UserError for
        process rewards if there are such rows.
        """
        batches, spread = {}, None
        for number, label in enumerate(self.players):
            rows = self.lineage.of(number)
            judged = self.lineage.judged[rows]
            if bool((judged >= 0).all()):
                own = _selected(scores, judged)
            else:
                spread = spread or self._credit(scores)
                own = spread.select(rows)
            batches[label] = TrainingBatch(
                rollouts=self.rollouts(label),
                scores=own,
                rest_of_group=self._others(judged, scores) if self.compared else None,
            )
        return batches

    def _others(self, judged: Tensor, scores: Scores) -> TrainingBatch:
        """The judged rows of other players."""
        others = torch.ones(len(self.judged), dtype=torch.bool)
        others[judged] = False
        return TrainingBatch(rollouts=self.judged.select(others), scores=scores.select(others))

    def _credit(self, scores: Scores) -> Scores:
        """The scores of all rows of all players."""
        if scores.steps is not None:
            raise UserError(
                "process rewards judge the decisions of completions that rewards see, and not all "
                "policies of this run have such completions (in a chain only the last has)"
            )
        values = torch.tensor([self.values.get(label, 0.0) for label in self.players])
        return self.lineage.credit(
            scores, self._failed, values.to(scores.values)[self.lineage.players]
        )


def _selected(scores: Scores, rows: Tensor) -> Scores:
    """The scores of these rows; the same object if these are all, in order."""
    if torch.equal(rows, torch.arange(len(scores.failed))):
        return scores
    return scores.select(rows)
