"""TrainingBatch: the scored rollouts that one learner is trained on."""

from dataclasses import dataclass, replace

import torch
from accelerate.utils import gather_object
from torch import Tensor

from groupwise.algorithm import Algorithm
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """The scored rollouts that one learner is trained on.

    rest_of_group: rollouts of other learners in the same groups, with their scores; None if the
    groups are its own.
    """

    rollouts: Rollouts
    scores: Scores
    rest_of_group: "TrainingBatch | None" = None

    def without_failed(self) -> "TrainingBatch":
        """The rollouts that did not fail: algorithms, updates and replay see no others."""
        rest = None if self.rest_of_group is None else self.rest_of_group.without_failed()
        if not bool(self.scores.failed.any()):
            return replace(self, rest_of_group=rest)
        rows = ~self.scores.failed
        return TrainingBatch(
            rollouts=self.rollouts.select(rows), scores=self.scores.select(rows), rest_of_group=rest
        )

    def select(self, rows: Tensor) -> "TrainingBatch":
        """The rollouts at `rows` (indices or bool), and the rest of their groups."""
        rollouts, rest = self.rollouts.select(rows), self.rest_of_group
        if rest is not None:
            rest = rest.select(torch.isin(rest.rollouts.groups.cpu(), rollouts.groups.cpu()))
        return TrainingBatch(rollouts=rollouts, scores=self.scores.select(rows), rest_of_group=rest)

    def no_signal(self, algorithm: Algorithm) -> Tensor:
        """[B] bool: rollouts whose group, with its `rest_of_group`, has no training signal.

        A group whose rollouts all failed has none. A collective: it is decided over the rollouts of
        all processes, since an algorithm may compare a group with the rest of them.
        """
        usable = self.without_failed()
        parts = [usable] if usable.rest_of_group is None else [usable, usable.rest_of_group]
        # Scores without what rewards logged, which is not compared.
        ours = [
            (skeleton(part.rollouts), part.scores.select(torch.arange(len(part.rollouts))))
            for part in parts
        ]
        shared = gather_object(ours)
        rollouts = Rollouts.concat([rollouts for rollouts, _ in shared])
        scores = Scores.concat([scores for _, scores in shared])
        # In the order that one process would have, so that sums are rounded alike.
        order = rollouts.groups.argsort(stable=True)
        rollouts, scores = rollouts.select(order), scores.select(order)
        alive = rollouts.groups[~algorithm.no_signal(scores, rollouts)]
        return ~torch.isin(self.rollouts.groups.cpu(), alive)


def skeleton(rollouts: Rollouts) -> Rollouts:
    """What `Algorithm.targets` reads, in CPU memory and small enough to send: no completions."""
    return Rollouts(
        prompts=[{}] * len(rollouts),
        completions=[None] * len(rollouts),
        groups=rollouts.groups.cpu(),
        mask=rollouts.mask.cpu(),
        truncated=rollouts.truncated.cpu(),
        endings=rollouts.endings,
        turns=rollouts.turns,
        roles=rollouts.roles,
        versions=rollouts.versions,
        episodes=rollouts.episodes,
    )
