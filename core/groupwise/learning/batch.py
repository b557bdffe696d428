"""Batch: the rollouts that a learner is trained on in a step; Update: those of one update."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from groupwise import objective
from groupwise.kit import processes
from groupwise.learning.share import Share
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
    order: Tensor | None = None
    """[B, 3]: the order of the rollouts of all processes in which targets are computed, so that
    they do not depend on where a rollout lies; None for that of the processes."""
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
    """The rollouts of a learner in a step."""

    share: Share
    """Those whose passes this process makes."""
    like: Scores
    """Scores of the step's rewards."""
    rest: Sequence[Rollout] | None
    """Other learners' rollouts in the same groups, sampled here; None if there are none."""
    left: Sequence[Rollout] | None
    """Those of its own that are compared, but not trained on, sampled here; None if it is trained
    on all."""
    advantages: Tensor = field(init=False)
    """[B] float64, of the share: the mean over the decisions that count; NaN if the algorithm has
    no advantages, or the rollout no such decision."""

    def __post_init__(self) -> None:
        self.advantages = torch.full((len(self.share),), math.nan, dtype=torch.float64)

    @property
    def rollouts(self) -> Rollouts:
        return self.share.rollouts

    def oldest(self, step: int) -> int:
        """The version of the oldest weights that drew rollouts of this step, on any process; `step`
        for the current ones. A collective."""
        versions = self.rollouts.versions
        fresh = [] if versions is None else versions[~self.share.replayed].tolist()
        own = min(fresh, default=step)
        return step - processes.largest(step - own)

    def rows(self, draws: Tensor) -> Tensor:
        """Those of the share that answer these draws."""
        return torch.isin(self.share.draws, draws).nonzero().flatten()

    def update(self, draws: Tensor, outputs: Mapping[str, Tensor], **how: bool) -> Update:
        """That of these draws; outputs: [B, T, ...], of the share; how: the flags of `Update`."""
        rows, numbers = self.rows(draws), {*draws.tolist()}
        part = self.share.select(rows)
        decisions = part.rollouts.mask.shape[1]
        return Update(
            rollouts=part.rollouts,
            scores=part.scores,
            outputs={name: value[rows, :decisions] for name, value in outputs.items()},
            rest=self._of_draws(self.rest, numbers, by_draw),
            left=self._of_draws(self.left, numbers, light),
            replayed=part.replayed,
            order=torch.cat([part.draws.unsqueeze(1), part.homes], dim=1),
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
        own, mask = observations.clone(), self.rollouts.mask.cpu()
        for row in self.share.goes_on.nonzero().flatten().tolist():
            own[row, : int(mask[row].int().argmax())] = False
        return own

    def note_advantages(self, draws: Tensor, mask: Tensor, targets: Mapping[str, Tensor]) -> None:
        """Note the `advantages` of the rollouts of an update; mask, targets: of it."""
        if (advantages := targets.get("advantages")) is None:
            return
        counts = mask.cpu() & (targets["weights"] != 0)
        sums = (objective.per_decision(advantages) * counts).sum(dim=1)
        self.advantages[self.rows(draws)] = (sums / counts.sum(dim=1)).double()
