"""Batch: the rollouts that a learner is trained on in a step, and those they are compared with."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from groupwise import objective
from groupwise.kit import processes
from groupwise.record import Rollout
from groupwise.record.gather import by_draw, gather, light, nothing_drawn, scores_of
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts

View = tuple[Rollouts, Scores]
"""Rollouts without trajectories, in CPU memory, and their scores."""


def nothing_of(sampled: Sequence[Rollout], dummy: Rollouts | None) -> Rollouts:
    """No rollouts, with the columns that others of the policy have."""
    others = gather(sampled[:1]) if sampled else dummy
    return nothing_drawn() if others is None else others.select([])


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
    replays: bool
    """Whether rollouts may be of earlier steps."""

    @cached_property
    def scores(self) -> Scores:
        """Of the rollouts."""
        return scores_of(self.members, self.like)

    @cached_property
    def replayed(self) -> Tensor | None:
        """[B] bool: rollouts of earlier steps; None if there can be none."""
        own = torch.tensor([member.is_replayed for member in self.members], dtype=torch.bool)
        return own if self.replays else None

    def oldest(self, step: int) -> int:
        """The version of the oldest weights that drew rollouts of this step, on any process; `step`
        for the current ones. A collective."""
        versions = self.rollouts.versions
        if versions is not None and self.replayed is not None:
            versions = versions[~self.replayed]
        own = step if versions is None or not len(versions) else int(versions.min())
        return step - processes.largest(step - own)

    def update(self, rows: Tensor, outputs: Mapping[str, Tensor]) -> dict[str, Any]:
        """The arguments of `Updater.tensors` for an update of these rows.

        outputs: [B, T, ...], of all rollouts.
        """
        part = self.rollouts.select(rows)
        draws = {self.members[row].draw for row in rows.tolist()}
        decisions = part.mask.shape[1]
        return {
            "rollouts": part,
            "scores": self.scores.select(rows),
            "outputs": {name: value[rows, :decisions] for name, value in outputs.items()},
            "rest": self._of_draws(self.rest, draws, by_draw),
            "left": self._of_draws(self.left, draws, light),
            "replayed": None if self.replayed is None else self.replayed[rows],
        }

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

    def write_advantages(self, rows: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Write on the members of these rows the mean advantage over the decisions that count; None
        if the algorithm has no advantages, or the rollout no such decision.

        tensors: of their update, as of `Updater.tensors`.
        """
        advantages = tensors.get("advantages")
        if advantages is None:
            means = [math.nan] * len(rows)
        else:
            counts = tensors["mask"] & (tensors["weights"] != 0)
            sums = (objective.per_decision(advantages) * counts).sum(dim=1)
            means = (sums / counts.sum(dim=1)).tolist()
        for row, mean in zip(rows.tolist(), means, strict=True):
            self.members[row].advantage = None if math.isnan(mean) else mean
