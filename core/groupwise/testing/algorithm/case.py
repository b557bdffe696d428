"""Case: an algorithm, and its updates on rollouts of a toy policy."""

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithm import Algorithm
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.testing import compare
from groupwise.testing.algorithm.toy import Extra, Toy, toy_rollouts, toy_scores
from groupwise.testing.updater import updater_of
from groupwise.training.training_batch import TrainingBatch
from groupwise.training.update import Updater
from groupwise.weights import KeptWeights

LIMIT = 1e-5
"""The limit of relative differences of gradients: the toy is in float64, targets in float32."""
WHOLE = 10**9
REWARDS = (1.0, 0.0, 0.3, 2.0, 0.0, 0.0, 1.0, 0.7, 3.0, 1.0, 0.1, 0.2)


class Case:
    """An algorithm; each update is made by a copy of it, since it may have a state."""

    def __init__(self, algorithm: Algorithm, extras: Mapping[str, Extra]) -> None:
        self.algorithm, self.extras = algorithm, extras

    def toy(self, *, spread: float = 0.5) -> Toy:
        """A toy policy, which returns only the outputs that a pass asks for."""
        return Toy(spread=spread, extras=self.extras)

    def update(
        self,
        rewards: Any = REWARDS,
        *,
        toy: Toy | None = None,
        rollouts: Rollouts | None = None,
        budget: int = WHOLE,
        first: bool = False,
        everything: bool = False,
        algorithm: Algorithm | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """The gradient of an update, and its metrics.

        first: the step's first update; else the old outputs are of other weights.
        everything: include the rollouts that `active` leaves out.
        algorithm: makes the update, which may change its state; a copy of the case's if unset.
        """
        toy = toy or self.toy()
        rollouts = toy_rollouts(toy) if rollouts is None else rollouts
        algorithm = algorithm or copy.deepcopy(self.algorithm)
        algorithm.prepare(toy, KeptWeights(toy))
        if everything:
            algorithm.active = lambda targets: torch.ones(len(targets["weights"])).bool()  # type: ignore[method-assign]
        updater = updater_of(toy, algorithm, budget)
        toy.zero_grad()
        measured = updater.backward(
            rollouts,
            toy_scores(rewards),
            self.outputs(updater, toy, rollouts, first=first),
            first=first,
            corrected=algorithm.corrects,
        )
        return compare.gradient(toy), measured

    def outputs(
        self, updater: Updater, toy: Toy, rollouts: Rollouts, *, first: bool = False
    ) -> dict[str, Tensor]:
        """The outputs of the policy before the first update, and of the reference."""
        algorithm = updater.algorithm
        for_targets = algorithm.old_for_targets
        outputs: dict[str, Tensor] = {}
        with nullcontext() if first else compare.nudged(toy, seed=1):
            names = for_targets if first else algorithm.old | for_targets
            old = updater.outputs(rollouts, names) if names else {}
            outputs |= {f"old_{name}": value for name, value in old.items()}
        with compare.nudged(toy, seed=2):
            names = algorithm.reference
            reference = updater.outputs(rollouts, names) if names else {}
            outputs |= {f"reference_{name}": value for name, value in reference.items()}
        return outputs

    def targets(self, scores: Scores, rollouts: Rollouts, toy: Toy) -> Mapping[str, Tensor]:
        algorithm = copy.deepcopy(self.algorithm)
        algorithm.prepare(toy, KeptWeights(toy))
        updater = updater_of(toy, algorithm, WHOLE)
        batch = TrainingBatch(rollouts=rollouts, scores=scores)
        return updater.targets(batch, self.outputs(updater, toy, rollouts))
