"""Outputs before the updates of a step: of the policy, of its kept weights, and of the teacher."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from groupwise.algorithm import OBSERVATIONS, Algorithm
from groupwise.learning.batch import Batch
from groupwise.learning.update import Updater
from groupwise.policy import Policy
from groupwise.weights import KeptWeights


def outputs_before(
    batch: Batch,
    plan: Sequence[Tensor],
    updater: Updater,
    weights: KeptWeights,
    *,
    teacher: Policy | None,
    known_log_probs: Tensor | None,
) -> dict[str, Tensor]:
    """What the loss reads of the time before the updates: `reference_*`, those of other kept
    weights, `teacher_*` and `old_*` tensors [B, T, ...] on the CPU; and `observations`, if the
    algorithm reads them.

    plan: the draws of each update; known_log_probs: [B, T], the policy's, if they need not be
    computed.
    """
    algorithm, rollouts = updater.algorithm, batch.rollouts
    outputs: dict[str, Tensor] = {}
    for name, read in algorithm.kept_outputs.items():
        if read:
            with weights.using(name):
                outputs |= _named(name, updater.outputs(rollouts, read))
    if algorithm.teacher:
        of_teacher = updater.outputs(rollouts, algorithm.teacher, of=teacher)
        outputs |= _named("teacher", of_teacher)
    if OBSERVATIONS in algorithm.target_inputs:
        observations = updater.policy.observations(rollouts).cpu()
        outputs[OBSERVATIONS] = batch.own_observations(observations)
    names, rows = _old(algorithm, batch, plan)
    if known_log_probs is not None and "log_probs" in names:
        outputs["old_log_probs"] = known_log_probs.cpu()
        names -= {"log_probs"}
    chosen = rollouts.select(rows)
    for name, values in _named("old", updater.outputs(chosen, names) if names else {}).items():
        outputs[name] = values.new_zeros(rollouts.mask.shape + values.shape[2:])
        outputs[name][rows, : values.shape[1]] = values
    return outputs


def _old(
    algorithm: Algorithm, batch: Batch, plan: Sequence[Tensor]
) -> tuple[frozenset[str], Tensor]:
    """The names of outputs that are compared with later ones, and of which rows they are needed:
    of all if `targets` reads them, else of those of later updates."""
    names = algorithm.old_for_targets | (algorithm.old if len(plan) > 1 else frozenset())
    if algorithm.old_for_targets:
        return names, torch.arange(len(batch.share))
    return names, batch.rows(torch.cat([torch.empty(0, dtype=torch.int64), *plan[1:]]))


def _named(prefix: str, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}_{name}": value for name, value in outputs.items()}
