"""Extremes: the best and the worst rollouts of each group, on which alone a policy is trained.

The passes of an update then cost as much as smaller groups do, while advantages are those of the
whole group. Its gradient is not that of the whole group: rewards between the extremes do not count,
so that the rarer of two outcomes weighs more than it is sampled.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from groupwise.record import Rollout
from groupwise.record.gather import scores_of
from groupwise.rewards import Scores


def is_extreme(rewards: Tensor, groups: Tensor, most: int) -> Tensor:
    """[B] bool: the rollouts of each group that stay: half of `most` with the highest rewards and
    half with the lowest, or all of a group that has no more.

    As in DanceGRPO, arXiv:2505.07818. rewards: [B], NaN for none, which counts as in between;
    groups: [B]; most: an even number. Of equal rewards earlier rollouts count as higher ones.
    """
    stays = torch.ones(len(rewards), dtype=torch.bool)
    rows_of = defaultdict[int, list[int]](list)
    for row, group in enumerate(groups.tolist()):
        rows_of[group].append(row)
    values = rewards.tolist()
    for rows in rows_of.values():
        without = [row for row in rows if math.isnan(values[row])]
        ranked = sorted({*rows} - {*without}, key=lambda row: (-values[row], row))
        middle = len(ranked) // 2
        ranked[middle:middle] = without
        stays[ranked[most // 2 : len(ranked) - most // 2]] = False
    return stays


def extremes(
    rollouts: Sequence[Rollout], like: Scores, most: int, *, beside: Sequence[Rollout] = ()
) -> tuple[list[Rollout], list[Rollout]]:
    """The rollouts that a learner is trained on, and those that are left out.

    like: scores of the same rewards; most: of a comparison, see `is_extreme`; beside: rollouts of
    other learners, which are among those that are compared.
    """
    every = [*rollouts, *beside]
    groups = torch.tensor([each.comparison.number for each in every], dtype=torch.int64)
    stays = is_extreme(scores_of(every, like).total, groups, most).tolist()
    own = [*zip(rollouts, stays[: len(rollouts)], strict=True)]
    return [each for each, one in own if one], [each for each, one in own if not one]
