"""Signal: whether a group of rollouts teaches an algorithm anything."""

import torch
from accelerate.utils import gather_object
from torch import Tensor

from groupwise.algorithm import Algorithm
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


def no_signal(
    rollouts: Rollouts,
    scores: Scores,
    algorithm: Algorithm,
    *,
    rest: tuple[Rollouts, Scores] | None = None,
) -> Tensor:
    """[B] bool: rollouts whose group, with the `rest` of it, has no training signal.

    A group whose rollouts all failed has none. A collective: it is decided over the rollouts of all
    processes, since an algorithm may compare a group with the rest of them. rest: rollouts of other
    learners in the same groups.
    """
    ours = []
    for own, own_scores in [(rollouts, scores), *([rest] if rest is not None else [])]:
        usable = ~own_scores.failed
        ours.append((skeleton(own.select(usable)), own_scores.select(usable).bare))
    shared = [part for parts in gather_object([ours]) for part in parts]
    every = Rollouts.concat([part for part, _ in shared])
    every_scores = Scores.concat([part for _, part in shared])
    # In the order that one process would have, so that sums are rounded alike.
    order = every.groups.argsort(stable=True)
    every, every_scores = every.select(order), every_scores.select(order)
    alive = every.groups[~algorithm.no_signal(every_scores, every)]
    return ~torch.isin(rollouts.groups.cpu(), alive)


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
