"""Case: an algorithm, and its updates on rollouts of a toy policy."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property

import torch
from torch import Tensor

from groupwise.algorithm import Algorithm
from groupwise.learning.batch import Update
from groupwise.learning.update import Updater
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.weights import KeptWeights
from groupwise_testing import compare
from groupwise_testing.algorithm.toy import Extra, Toy, as_log_probs, toy_scores
from groupwise_testing.updater import updater_of

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

    @cached_property
    def rollouts(self) -> Rollouts:
        """Three groups of four, with holes and of unequal lengths; the same with any weights."""
        rows = [{"prompt": f"question {number}"} for number in range(3)]
        return self.toy().sample(rows, group_size=4, seeds=range(len(REWARDS)))

    def updater(
        self, toy: Toy | None = None, *, algorithm: Algorithm | None = None, budget: int = WHOLE
    ) -> Updater:
        """The core's `Updater`; see `updater_of`.

        algorithm: a copy of the case's if unset.
        """
        toy = toy or self.toy()
        algorithm = algorithm or copy.deepcopy(self.algorithm)
        algorithm.prepare(toy, KeptWeights(toy))
        return updater_of(toy, algorithm, budget)

    def update(
        self,
        rewards: Sequence[float] = REWARDS,
        *,
        toy: Toy | None = None,
        algorithm: Algorithm | None = None,
        budget: int = WHOLE,
        first: bool = False,
        everything: bool = False,
    ) -> tuple[Tensor, dict[str, float]]:
        """The gradient of an update, and its metrics.

        algorithm: makes the update, which may change its state; a copy of the case's if unset.
        first: the step's first update; else the old outputs are of other weights.
        everything: include the rollouts that `active` leaves out.
        """
        toy = toy or self.toy()
        updater = self.updater(toy, algorithm=algorithm, budget=budget)
        if everything:
            updater.algorithm.active = lambda targets: torch.ones(len(targets["weights"])).bool()  # type: ignore[method-assign]
        toy.zero_grad()
        measured = updater.backward(
            scores=toy_scores(rewards),
            rollouts=self.rollouts,
            outputs=outputs_before(updater, self.rollouts, first=first),
            first=first,
            corrected=updater.algorithm.corrects,
        )
        return compare.gradient(toy), measured

    def targets(
        self, rewards: Sequence[float], rollouts: Rollouts | None = None
    ) -> Mapping[str, Tensor]:
        """The targets of an update on these rollouts, all if unset."""
        rollouts = self.rollouts if rollouts is None else rollouts
        updater = self.updater()
        outputs = outputs_before(updater, rollouts)
        return updater.targets(
            Update(scores=toy_scores(rewards), rollouts=rollouts, outputs=outputs)
        )


def outputs_before(
    updater: Updater, rollouts: Rollouts, *, first: bool = False
) -> dict[str, Tensor]:
    """The outputs of the policy before the step's first update, of the reference, of a teacher."""
    algorithm, outputs = updater.algorithm, dict[str, Tensor]()
    old = algorithm.old_for_targets | (frozenset() if first else algorithm.old)
    nudges = {"reference": 2, "teacher": 3} | ({} if first else {"old": 1})
    nudges |= {name: 4 + number for number, name in enumerate(algorithm.copies)}
    named = {"old": old, "teacher": algorithm.teacher, **algorithm.kept_outputs}
    for kind, names in named.items():
        seed = nudges.get(kind)
        with nullcontext() if seed is None else compare.nudged(updater.policy, seed=seed):
            values = updater.outputs(rollouts, names) if names else {}
        outputs |= {f"{kind}_{name}": value for name, value in values.items()}
    return outputs


def gradient_gap(gradient: Tensor, expected: Tensor) -> str | None:
    """How a gradient differs from the expected one; None if it does not."""
    gap = compare.direction_gap(gradient, expected)
    return f"the gradient differs by {gap:.2g} of its norm" if gap > LIMIT else None


class FirstUpdate:
    """The loss of a step's first update on all rollouts at once, as a function of the policy's
    outputs.

    outputs: by name, leaves of autograd. batch: what the loss receives besides them.
    """

    def __init__(self, case: Case, scores: Scores | None = None) -> None:
        updater = case.updater()
        self.algorithm, self.mask = updater.algorithm, case.rollouts.mask
        before = outputs_before(updater, case.rollouts, first=True)
        scores = scores or toy_scores(REWARDS)
        targets = updater.targets(Update(scores=scores, rollouts=case.rollouts, outputs=before))
        names = self.algorithm.needs | self.algorithm.old
        with torch.no_grad():
            outputs = updater.policy(case.rollouts, outputs=names).outputs
        self.outputs = {name: value.clone().requires_grad_() for name, value in outputs.items()}
        self.batch = {**targets, "mask": self.mask, **before}
        self.batch |= {f"old_{name}": outputs[name] for name in self.algorithm.old}

    @property
    def without_advantages(self) -> dict[str, Tensor]:
        """Advantages of 0, for `loss`, and a teacher that adds none to them; nothing if the
        algorithm has none."""
        names = {"advantages"} & self.batch.keys()
        zeros = {name: torch.zeros_like(self.batch[name]) for name in names}
        taught = {"teacher_log_probs"} & self.batch.keys()
        return zeros | dict.fromkeys(taught, self.batch["old_log_probs"])

    def loss(self, **changed: Tensor) -> Tensor:
        """[b, t], with some tensors of the batch replaced."""
        loss = self.algorithm.loss(as_log_probs(self.outputs), {**self.batch, **changed})
        if loss.shape != self.mask.shape:
            raise ValueError(
                f"the loss has shape {list(loss.shape)}, expected {list(self.mask.shape)}, one "
                f"number per decision"
            )
        return loss

    def gradients(self, **changed: Tensor) -> dict[str, Tensor]:
        """The gradient of the loss with respect to each output, zeros where it has none."""
        outputs = [*self.outputs.values()]
        total = self.loss(**changed).sum()
        gradients = torch.autograd.grad(total, outputs, allow_unused=True, materialize_grads=True)
        return dict(zip(self.outputs, gradients, strict=True))
