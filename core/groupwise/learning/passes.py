"""Passes: how many of each rollout the updates of a step make, by which they are dealt."""

from collections.abc import Sequence

import torch
from torch import Tensor

from groupwise.algorithm import Algorithm
from groupwise.learning.batch import Batch
from groupwise.learning.update import Updater

UPDATE = 3
"""What a forward and a backward pass cost, in forward passes (arXiv:2001.08361, section 2.1)."""


def passes(
    batch: Batch, updates: Sequence[Tensor], updater: Updater, *, epochs: int, is_exact: bool
) -> Tensor:
    """[B]: what is computed of each rollout, in forward passes. A collective.

    A rollout whose loss has no gradient gets none in its update. Where targets are computed from
    outputs of the policy that is not known yet, and every rollout counts.

    updates: the draws of each; is_exact: whether the sampler's log-probs are the policy's.
    """
    algorithm, counts = updater.algorithm, torch.zeros(len(batch.share))
    for number, draws in enumerate(updates):
        active: Tensor | bool = True
        if not algorithm.target_inputs:
            update = batch.update(draws, {}, repeated=True)  # it is observed when it is made
            active = algorithm.active(updater.targets(update))
        is_later = number > 0 or epochs > 1
        before = _before(algorithm, is_later=is_later, is_exact=is_exact)
        counts[batch.rows(draws)] = before + UPDATE * epochs * torch.as_tensor(active).float()
    return counts


def _before(algorithm: Algorithm, *, is_later: bool, is_exact: bool) -> int:
    """How many passes `outputs_before` makes of a rollout; is_later: whether it is of an update
    after the step's first."""
    old = algorithm.old_for_targets | (algorithm.old if is_later else frozenset())
    old -= {"log_probs"} if is_exact else set()
    return sum(map(bool, (*algorithm.kept_outputs.values(), algorithm.teacher, old)))
