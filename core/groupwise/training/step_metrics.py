"""Step metrics: metrics of a step's rollouts and rewards, over all processes."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from groupwise import processes
from groupwise.advantages import group_std
from groupwise.errors import UserError
from groupwise.prompts.outcomes import Outcome
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts
from groupwise.training.work import TrainingBatch

FAILED = "failed"
"""The metric of failed completions; `failed/REWARD` counts those on which a reward failed."""
SAMPLED = frozenset({"sampled", "sampled_decisions"})
"""Counts that are not metrics themselves: of completions, and of decisions."""
COUNTS = frozenset({FAILED, "unscored"}) | SAMPLED


def describe(
    rollouts: Rollouts,
    scores: Scores,
    *,
    dead: Tensor,
    right: Tensor | None,
    logged: Collection[str],
) -> dict[str, Any]:
    """Means, counts and seconds by name, and what rewards log themselves.

    Failed rollouts are in no mean: they are only counted.

    dead: [B] bool, rollouts of groups without a training signal; right: [B], 1 for right
    completions, None if no reward tells right from wrong; logged: the policy's facts whose means
    are metrics.
    """
    total, groups, failed = scores.total, rollouts.groups.cpu(), scores.failed
    lengths = rollouts.lengths.cpu()
    of_rollouts = {
        "reward": total,
        "reward_std": group_std(total, groups),
        **({} if right is None else {"accuracy": right}),
        "zero_variance": dead,
        "length": lengths,
        "truncated": rollouts.truncated,
        **{f"rewards/{name}": scores.column(name) for name in scores.names},
    }
    for name in sorted(logged & rollouts.facts.keys()):
        of_rollouts[name] = torch.tensor(rollouts.facts[name])
    longest = int(lengths[~failed].max()) if bool((~failed).any()) else 0
    metrics = {
        **processes.means(_without(failed, of_rollouts)),
        FAILED: processes.total(int(failed.sum())),
        "unscored": processes.total(int((total.isnan() & ~failed).sum())),
        "sampled": processes.total(len(rollouts)),
        "sampled_decisions": processes.total(int(lengths.sum())),
        "length_max": float(processes.largest(longest)),
        **{f"reward_time/{name}": spent for name, spent in scores.seconds.items()},
    }
    by_reward = {n: processes.total(scores.failure_counts.get(n, 0)) for n in scores.names}
    metrics |= {f"{FAILED}/{name}": count for name, count in by_reward.items() if count}
    return {**metrics, **scores.metrics}  # named REWARD/..., so they cannot collide


def _without(failed: Tensor, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The columns [B] with NaN, which means leave out, at failed rollouts."""
    return {n: v.cpu().double().masked_fill(failed, math.nan) for n, v in columns.items()}


def outcomes(rollouts: Rollouts, right: Tensor) -> dict[int, Outcome]:
    """The outcome of each draw, by its number, over all processes.

    right: [B], 1 for right completions, 0 for wrong ones, NaN if not judged.
    """
    numbers, index = rollouts.groups.cpu().unique(return_inverse=True)
    sums = torch.zeros(len(numbers), 2, dtype=torch.float64)
    sums.index_add_(0, index, torch.stack([right.nan_to_num(), (~right.isnan()).double()], dim=1))
    rows = zip(numbers.tolist(), sums.tolist(), strict=True)
    parts = gather_object([{number: Outcome(*counts) for number, counts in rows}])
    return {number: outcome for part in parts for number, outcome in part.items()}


def of_learners(
    batches: Mapping[str, TrainingBatch], dead: Mapping[str, Tensor]
) -> dict[str, float]:
    """Metrics of each learner's rollouts, as `LABEL/metric`, and counts over all learners.

    dead: [B] bool for each that learns: rollouts of groups that teach it nothing.
    """
    metrics: dict[str, float] = {}
    for label, batch in batches.items():
        total, groups = batch.scores.total, batch.rollouts.groups.cpu()
        columns = {
            "reward": total,
            "reward_std": group_std(total, groups),
            **({"zero_variance": dead[label]} if label in dead else {}),
            "length": batch.rollouts.lengths,
            "truncated": batch.rollouts.truncated,
        }
        means = processes.means(_without(batch.scores.failed, columns))
        metrics |= {f"{label}/{name}": value for name, value in means.items()}
        metrics[f"{label}/{FAILED}"] = processes.total(int(batch.scores.failed.sum()))
    decisions = sum(int(batch.rollouts.lengths.sum()) for batch in batches.values())
    return {
        **metrics,
        FAILED: sum(int(metrics[f"{label}/{FAILED}"]) for label in batches),
        "sampled": processes.total(sum(len(batch.rollouts) for batch in batches.values())),
        "sampled_decisions": processes.total(decisions),
    }


def with_round(metrics: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a step with the counts and seconds of a further round of sampling added.

    Means are of the first round only, since later rounds are no fair sample of the prompts.
    """
    added = {n for n in further if n in COUNTS or n.startswith(("reward_time/", f"{FAILED}/"))}
    return {**metrics, **{name: metrics.get(name, 0) + further[name] for name in sorted(added)}}


def joined(metrics: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """The union; UserError if the algorithm logs a name that the run has, too."""
    for name in sorted(metrics.keys() & others.keys()):
        raise UserError(
            f"the metric {name!r} is logged twice, by the run and by the algorithm; rename the "
            f"algorithm's"
        )
    return {**metrics, **others}
