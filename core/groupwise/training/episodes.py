"""Episodes: whole groups of played episodes: what rewards judge, and the rows of each player."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groupwise.config.learners import SOLE
from groupwise.environment import Reply
from groupwise.errors import UserError
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.reward_result import excerpt
from groupwise.training.calls import Call, Episode, Rows
from groupwise.training.credit import credit
from groupwise.training.training_batch import TrainingBatch


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A reply that another player could not take as its context, or that failed before; or an
    episode that failed before any reply.

    by: the label of that player; written: the reply by its player's label, a text if it has one;
    value: the value of each reward for it; failure: why the reply failed, None if it was refused.
    """

    episode: Episode
    by: str = ""
    written: Mapping[str, Any] = field(default_factory=dict)
    value: float = 0.0
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """A batch of whole groups of episodes.

    Facts are only in `judged`: nothing else may hold their tensors once rewards have seen them. The
    rollouts of each of several players keep those that are logged, as plain numbers.

    judged: the rollouts that rewards see, as completions of the data set's rows; judged_calls: the
    call of each; players: the rollouts of each, by label in the order of the configuration; None
    for a single player that is called once in an episode: its rollouts are the judged ones; calls:
    by label, those of each rollout; compared: whether the players' rows are compared with each
    other; refused: by label, the value of each reward for replies that another player refused;
    lost: episodes that failed before any reply.
    """

    judged: Rollouts
    judged_calls: Sequence[Call]
    players: Mapping[str, Rollouts | None]
    calls: Rows
    compared: bool
    refused: Mapping[str, float]
    lost: Sequence[Episode] = ()

    @property
    def count(self) -> int:
        """How many episodes they are."""
        return len({call.episode for call in self._all_calls}) + len(self.lost)

    def rollouts(self, label: str) -> Rollouts:
        """The rollouts of a player."""
        rollouts = self.players[label]
        return self.judged if rollouts is None else rollouts

    def draws(self, label: str) -> Tensor:
        """[n] int64: for each rollout of a player the number of its prompt's draw."""
        numbers = [calls[0].episode.draw.number for calls in self.calls[label]]
        return torch.tensor(numbers, dtype=torch.int64)

    @property
    def failures(self) -> dict[str, str]:
        """By cause, the first completion of each player that failed, in one line, with its prompt;
        causes are `/LABEL`, and `/` for the only player and for `lost` episodes."""
        described = {}
        if self.lost:
            prompt = excerpt(self.lost[0].draw.row.get("prompt"))
            described["/"] = f"an episode failed: {self.lost[0].failure}, at the prompt {prompt}"
        for label, rows in self.calls.items():
            first = next((calls[0] for calls in rows if calls[0].failure is not None), None)
            if first is not None:
                which = "a completion" if label == SOLE else f"a completion of {label!r}"
                prompt = excerpt(first.episode.draw.row.get("prompt"))
                # A slash, since a reward may have the name of a policy.
                cause = "/" if label == SOLE else f"/{label}"
                described[cause] = f"{which} failed: {first.failure}, at the prompt {prompt}"
        return described

    @property
    def refusals(self) -> list[Refusal]:
        """Replies and episodes without a rollout in `judged`."""
        replies = [
            Refusal(
                episode=call.episode,
                by=call.refused_by or "",
                written={} if call.reply is None else {call.label: _written(call.reply)},
                value=self.refused[call.label],
                failure=call.failure,
            )
            for call in self._dead_ends
        ]
        return replies + [Refusal(episode=each, failure=each.failure) for each in self.lost]

    def check_not_empty(self) -> None:
        """Raise UserError if a player has no rollouts on this process, so none for dummy passes."""
        for label in self.players:
            if not len(self.rollouts(label)):
                raise UserError(self._lacks_rows(label))

    def _lacks_rows(self, label: str) -> str:
        each = [self.rollouts(label) for label in self.players]
        failed, count = sum(int(own.failed.sum()) for own in each), sum(map(len, each))
        refused = sum(call.refused_by is not None for call in self._dead_ends)
        others = " and ".join(repr(n) for n in self.players if len(self.rollouts(n)))
        reasons = "".join(f"\n  {why}" for why in self.failures.values())
        return (
            f"on one of the processes {label!r} has no prompt in this step, so there is nothing to "
            f"learn from: of {count} completions of {others} {failed} failed, and "
            f"{label!r} cannot take {refused} as its prompt. "
            f"Use fewer processes or more train.groups_per_step"
            f"{', and policies that write what the next one can take' if refused else ''}"
            f"{'; the first failures:' if reasons else ''}{reasons}"
        )

    @property
    def _all_calls(self) -> list[Call]:
        return [call for rows in self.calls.values() for calls in rows for call in calls]

    @property
    def _dead_ends(self) -> list[Call]:
        """Calls that failed or whose reply was refused, not judged, and that nothing follows."""
        judged = {*self.judged_calls}
        return [
            call
            for call in self._all_calls
            if (call.failure is not None or call.refused_by is not None)
            and call not in judged
            and not call.is_followed
        ]

    def select(self, rows: Tensor) -> "Episodes":
        """The part of whole groups; rows: [B] bool or indices of judged rollouts."""
        index = torch.arange(len(self.judged))[rows]
        judged_calls = [self.judged_calls[row] for row in index.tolist()]
        draws = {call.episode.draw.number for call in judged_calls}
        kept = {
            label: [row for row, draw in enumerate(self.draws(label).tolist()) if draw in draws]
            for label in self.players
        }
        return Episodes(
            judged=self.judged.select(index),
            judged_calls=judged_calls,
            players={
                label: None if own is None else own.select(kept[label])
                for label, own in self.players.items()
            },
            calls={label: [self.calls[label][row] for row in own] for label, own in kept.items()},
            compared=self.compared,
            refused=self.refused,
            lost=[episode for episode in self.lost if episode.draw.number in draws],
        )

    @staticmethod
    def concat(parts: Sequence["Episodes"]) -> "Episodes":
        """All parts as one, in order."""
        first, *others = parts
        if not others:
            return first
        return Episodes(
            judged=Rollouts.concat([part.judged for part in parts]),
            judged_calls=[call for part in parts for call in part.judged_calls],
            players={
                label: None
                if own is None
                else Rollouts.concat([part.rollouts(label) for part in parts])
                for label, own in first.players.items()
            },
            calls={
                label: [calls for part in parts for calls in part.calls[label]]
                for label in first.calls
            },
            compared=first.compared,
            refused=first.refused,
            lost=[episode for part in parts for episode in part.lost],
        )

    def training_batches(self, scores: Scores) -> Mapping[str, TrainingBatch]:
        """The training batch of each player, by label; scores: of the judged rollouts.

        A row that is not judged has the mean scores of those that follow it. Raises UserError for
        process rewards if there are such rows.
        """
        places = {call: place for place, call in enumerate(self.judged_calls)}
        batches, spread = {}, None
        for label, rows in self.calls.items():
            # The call that has a rollout's reward: the judged one, else its first, which all others
            # follow.
            scored_calls = [
                next((c for c in reversed(calls) if c in places), calls[0]) for calls in rows
            ]
            if all(call in places for call in scored_calls):
                scored, numbers = scores, places
            else:
                if spread is None:
                    spread = self._credit(scores), {c: n for n, c in enumerate(self._all_calls)}
                scored, numbers = spread
            batches[label] = TrainingBatch(
                rollouts=self.rollouts(label),
                scores=_selected(scored, [numbers[call] for call in scored_calls]),
                rest_of_group=self._others(label, scores) if self.compared else None,
            )
        return batches

    def _others(self, label: str, scores: Scores) -> TrainingBatch:
        """The judged rows of other players."""
        is_own = [call.label == label for call in self.judged_calls]
        others = ~torch.tensor(is_own, dtype=torch.bool)
        return TrainingBatch(rollouts=self.judged.select(others), scores=scores.select(others))

    def _credit(self, scores: Scores) -> Scores:
        """The scores of all calls of all players."""
        if scores.steps is not None:
            raise UserError(
                "process rewards judge the decisions of completions that rewards see, and not all "
                "policies of this run have such completions (in a chain only the last has)"
            )
        return credit(scores, self.judged_calls, self._all_calls, self.refused)


def _written(reply: Reply) -> Any:
    return reply.text if isinstance(reply.completion, str | list | tuple) else reply.completion


def _selected(scores: Scores, rows: Sequence[int]) -> Scores:
    """The scores of these rows; the same object if these are all, in order."""
    if rows == [*range(len(scores.failed))]:
        return scores
    return scores.select(torch.tensor(rows, dtype=torch.int64))
