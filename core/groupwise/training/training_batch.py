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

    beside: rollouts of other learners in the same groups, with their scores; None if the groups are
    its own.
    """

    rollouts: Rollouts
    scores: Scores
    beside: "TrainingBatch | None" = None

    def without_failed(self) -> "TrainingBatch":
        """The rollouts that did not fail: algorithms, updates and replay see no others."""
        beside = None if self.beside is None else self.beside.without_failed()
        if not bool(self.scores.failed.any()):
            return replace(self, beside=beside)
        rows = ~self.scores.failed
        return TrainingBatch(
            rollouts=self.rollouts.select(rows), scores=self.scores.select(rows), beside=beside
        )

    def select(self, rows: Tensor) -> "TrainingBatch":
        """The rollouts at `rows` (indices or bool), and those `beside` them in their groups."""
        rollouts, beside = self.rollouts.select(rows), self.beside
        if beside is not None:
            others = torch.isin(beside.rollouts.groups.cpu(), rollouts.groups.cpu())
            beside = beside.select(others)
        return TrainingBatch(rollouts=rollouts, scores=self.scores.select(rows), beside=beside)

    def dead(self, algorithm: Algorithm) -> Tensor:
        """[B] bool: rollouts whose group, with those `beside`, has no training signal.

        A group whose rollouts all failed has none. A collective: it is decided over the rollouts of
        all processes, since an algorithm may compare a group with the rest of them.
        """
        usable = self.without_failed()
        parts = [usable] if usable.beside is None else [usable, usable.beside]
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
        alive = rollouts.groups[~algorithm.dead(scores, rollouts)]
        return ~torch.isin(self.rollouts.groups.cpu(), alive)


def skeleton(rollouts: Rollouts) -> Rollouts:
    """What `Algorithm.targets` reads, in CPU memory and small enough to send: no completions."""
    return Rollouts(
        prompts=[{}] * len(rollouts),
        completions=[None] * len(rollouts),
        groups=rollouts.groups.cpu(),
        mask=rollouts.mask.cpu(),
        truncated=rollouts.truncated.cpu(),
        versions=rollouts.versions,
    )
