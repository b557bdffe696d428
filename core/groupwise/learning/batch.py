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
from groupwise.record import Call
from groupwise.record.gather import by_draw, gather, light, nothing_drawn, scores_of
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts

View = tuple[Rollouts, Scores]
"""Rollouts without trajectories, in CPU memory, and their scores."""


def usable(firsts: Sequence[Call]) -> list[Call]:
    """Those that did not fail: algorithms, updates and replay see no others."""
    return [first for first in firsts if first.score is not None and not first.score.failed]


def nothing_of(firsts: Sequence[Call], dummy: Rollouts | None) -> Rollouts:
    """No rollouts, with the columns that others of the policy have."""
    others = gather(firsts[:1]) if firsts else dummy
    return nothing_drawn() if others is None else others.select([])


@dataclass(kw_only=True)
class Batch:
    """B rollouts of a learner, in one order."""

    firsts: Sequence[Call]
    """The first call of each."""
    rollouts: Rollouts
    like: Scores
    """Scores of the step's rewards."""
    rest: Sequence[Call] | None
    """The first calls of other learners' rollouts in the same groups; None if there are none."""
    left: Sequence[Call] | None
    """Those of its own that are compared, but not trained on; None if it is trained on all."""
    replays: bool
    """Whether rollouts may be of earlier steps."""

    @cached_property
    def scores(self) -> Scores:
        """Of the rollouts."""
        return scores_of(self.firsts, self.like)

    @cached_property
    def replayed(self) -> Tensor | None:
        """[B] bool: rollouts of earlier steps; None if there can be none."""
        own = torch.tensor([first.is_replayed for first in self.firsts], dtype=torch.bool)
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
        draws = {self.firsts[row].episode.group.number for row in rows.tolist()}
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
        firsts: Sequence[Call] | None,
        draws: set[int],
        rollouts: Callable[[Sequence[Call]], Rollouts],
    ) -> View | None:
        """Those of these draws, with their scores."""
        if firsts is None:
            return None
        own = [first for first in firsts if first.episode.group.number in draws]
        return rollouts(own), scores_of(own, self.like)

    def own_observations(self, observations: Tensor) -> Tensor:
        """[B, T] bool: those of each rollout; what stands before the first decision of one that
        begins within a context is of another rollout."""
        own = observations.clone()
        for row, first in enumerate(self.firsts):
            if first.goes_on_from is not None and first.mask is not None:
                own[row, : int(first.mask.int().argmax())] = False
        return own

    def write_advantages(self, rows: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Write on the calls of these rows the mean advantage over the decisions that count; None
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
            self.firsts[row].advantage = None if math.isnan(mean) else mean
