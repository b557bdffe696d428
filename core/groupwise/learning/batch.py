"""Batch: the rollouts that a learner is trained on in a step; Update: those of one update."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from groupwise import objective
from groupwise.kit import processes
from groupwise.record import Rollout
from groupwise.record.gather import View, by_draw, gather, light, nothing_drawn, scores_of
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


def nothing_of(sampled: Sequence[Rollout], dummy: Rollouts | None) -> Rollouts:
    """No rollouts, with the columns that others of the policy have."""
    others = gather(sampled[:1]) if sampled else dummy
    return nothing_drawn() if others is None else others.select([])


@dataclass(frozen=True, kw_only=True)
class Update:
    """The rollouts of one optimizer step on this process, and what its loss is made of."""

    rollouts: Rollouts
    scores: Scores
    outputs: Mapping[str, Tensor]
    """[B, T, ...] of the time before: `reference_*`, `teacher_*`, and in later updates `old_*`; in
    CPU memory, since a mean may be as large as a latent: a micro-batch moves its share."""
    rest: View | None = None
    """Rollouts of other learners in the same groups."""
    left: View | None = None
    """The learner's own that are not trained on; None if it is trained on all."""
    replayed: Tensor | None = None
    """[B] bool: rollouts of earlier steps, which are not compared with the sampler."""
    repeated: bool = False
    """Whether the step had an update with these rollouts before, in an earlier epoch."""
    first: bool = True
    """Whether it is the step's first: then the old outputs are the current ones."""
    corrected: bool = False
    """Whether the loss receives the sampler's log-probs, for importance weights."""
    compared: bool = False
    """Whether the old log-probs are the policy's own, not the sampler's, so that a later update
    compares them with the sampler's, too; the first one always does."""
    stale: bool = False
    """Whether older weights drew the rollouts: then the difference from the sampler is the policy's
    own movement, too, and is named so."""


@dataclass(kw_only=True)
class Batch:
    """B rollouts of a learner, in one order."""

    members: Sequence[Rollout]
    rollouts: Rollouts
    """What was gathered of them."""
    like: Scores
    """Scores of the step's rewards."""
    rest: Sequence[Rollout] | None
    """Other learners' rollouts in the same groups; None if there are none."""
    left: Sequence[Rollout] | None
    """Those of its own that are compared, but not trained on; None if it is trained on all."""

    @cached_property
    def scores(self) -> Scores:
        """Of the rollouts."""
        return scores_of(self.members, self.like)

    @cached_property
    def replayed(self) -> Tensor:
        """[B] bool: rollouts of earlier steps."""
        return torch.tensor([member.is_replayed for member in self.members], dtype=torch.bool)

    def oldest(self, step: int) -> int:
        """The version of the oldest weights that drew rollouts of this step, on any process; `step`
        for the current ones. A collective."""
        versions = self.rollouts.versions
        fresh = [] if versions is None else versions[~self.replayed].tolist()
        own = min(fresh, default=step)
        return step - processes.largest(step - own)

    def update(self, rows: Tensor, outputs: Mapping[str, Tensor], **how: bool) -> Update:
        """That of these rows; outputs: [B, T, ...], of all rollouts; how: the flags of `Update`."""
        part = self.rollouts.select(rows)
        draws, decisions = {self.members[row].draw for row in rows.tolist()}, part.mask.shape[1]
        return Update(
            rollouts=part,
            scores=self.scores.select(rows),
            outputs={name: value[rows, :decisions] for name, value in outputs.items()},
            rest=self._of_draws(self.rest, draws, by_draw),
            left=self._of_draws(self.left, draws, light),
            replayed=self.replayed[rows],
            **how,
        )

    def _of_draws(
        self,
        rollouts: Sequence[Rollout] | None,
        draws: set[int],
        as_batch: Callable[[Sequence[Rollout]], Rollouts],
    ) -> View | None:
        """Those of these draws, with their scores."""
        if rollouts is None:
            return None
        own = [each for each in rollouts if each.draw in draws]
        return as_batch(own), scores_of(own, self.like)

    def own_observations(self, observations: Tensor) -> Tensor:
        """[B, T] bool: those of each rollout; what stands before the first decision of one that
        begins within a context is of another rollout."""
        own = observations.clone()
        for row, member in enumerate(self.members):
            if member.first.goes_on_from is not None and member.mask is not None:
                own[row, : int(member.mask.int().argmax())] = False
        return own

    def write_advantages(self, rows: Tensor, mask: Tensor, targets: Mapping[str, Tensor]) -> None:
        """Write on the members of these rows the mean advantage over the decisions that count; None
        if the algorithm has no advantages, or the rollout no such decision.

        mask, targets: of their update.
        """
        advantages = targets.get("advantages")
        if advantages is None:
            means = [math.nan] * len(rows)
        else:
            counts = mask.cpu() & (targets["weights"] != 0)
            sums = (objective.per_decision(advantages) * counts).sum(dim=1)
            means = (sums / counts.sum(dim=1)).tolist()
        for row, mean in zip(rows.tolist(), means, strict=True):
            self.members[row].advantage = None if math.isnan(mean) else mean
